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
    "LBFGS": "LBFGS searches along a line with the whole gradient at once",
    "Adafactor": "Adafactor factors each matrix into rows and columns",
    "Muon": "Muon orthogonalises each matrix as a whole",
    "SparseAdam": "SparseAdam needs sparse gradients, and contributions are dense",
}
NOT_ELEMENTWISE = tuple(_REASONS)
"""Torch's other optimizers."""


def reason_against(name: str) -> str:
    """Why servers cannot run an optimizer that is not elementwise."""
    return _REASONS.get(name, "its class is not one of torch's elementwise optimizers")
