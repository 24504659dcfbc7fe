"""Which of torch's optimizers servers can run.

A server has slices and not whole tensors, so only elementwise optimizers give correct results
there.
"""

ELEMENTWISE = (
    "SGD",
    "Adam",
    "AdamW",
    "Adagrad",
    "Adadelta",
    "Adamax",
    "ASGD",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
)
"""Torch's optimizers that treat every element of a parameter independently of the others."""
_REASONS = {
    "LBFGS": "it searches along a line with the whole gradient at once",
    "Adafactor": "it factors each matrix into rows and columns",
    "Muon": "it orthogonalises each matrix as a whole",
    "SparseAdam": "it needs sparse gradients, and contributions are dense",
}
NOT_ELEMENTWISE = tuple(_REASONS)
"""Torch's other optimizers."""


def reason_against(name: str) -> str:
    """Why servers cannot run an optimizer that is not elementwise."""
    return _REASONS.get(name, "it is not one of torch's elementwise optimizers")
