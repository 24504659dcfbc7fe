"""Prepares sparse gradients, such as those of embeddings with `sparse=True`, for contributions.

SGD, Adagrad and SparseAdam take gradients of rows (`tensors/rows.py`). For all other optimizers on
servers, a sparse gradient is made dense, and the user gets a message about it. With kind local the
optimizer of the worker gets the gradients: they are made dense only for an optimizer of torch that
refuses sparse ones.
"""

from collections.abc import Callable

import torch

from polyrhythm.errors import UsageError
from polyrhythm.tensors.flat import FlatModel

_NO_ROWS = (
    "rows are contributed only for embeddings with sparse=True whose optimizer is SparseAdam, or SGD"
    " or Adagrad without weight decay"
)
_SEVERAL = "in a job with several models, no gradient is contributed as rows"


class SparseGradients:
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        flat: FlatModel,
        say: Callable[[str], None],
        *,
        on_servers: bool,
        several: bool,
    ) -> None:
        """`say` prints a message once for all workers of a job. `on_servers`: the servers, and not
        this worker, make the steps. `several`: the job has several models."""
        self._optimizer = type(optimizer).__name__
        self._rows_only = on_servers and isinstance(optimizer, torch.optim.SparseAdam)
        no_rows = _SEVERAL if several else _NO_ROWS
        self._why = no_rows if on_servers else "it takes no sparse gradients"
        self._keeps = not on_servers and not _refuses_sparse(optimizer)
        self._model = model
        self._rows = flat.row_tensors
        self._say = say
        self._said: set[int] = set()

    def prepare(self, parameters: list[torch.Tensor]) -> None:
        """Convert the sparse gradients that are not contributed row by row to dense tensors."""
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.layout is torch.strided:
                if self._rows_only:
                    raise UsageError(
                        f"the gradient of {self._name_of(parameter)!r} is dense, and SparseAdam takes"
                        " sparse gradients: use nn.Embedding(sparse=True), or Adam"
                    )
            elif not self._keeps and (
                id(parameter) not in self._rows or gradient.sparse_dim() != 1
            ):
                parameter.grad = gradient.to_dense()
                if id(parameter) not in self._said:
                    self._said.add(id(parameter))
                    self._say(
                        f"the sparse gradient of {self._name_of(parameter)!r} is made dense for"
                        f" {self._optimizer}; {self._why}"
                    )

    def _name_of(self, parameter: torch.Tensor) -> str:
        names = (name for name, each in self._model.named_parameters() if each is parameter)
        return next(names, "?")


def _refuses_sparse(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this is an optimizer of torch that raises an error if a gradient is sparse. An
    optimizer of the user's own may take any gradient."""
    if type(optimizer) in (torch.optim.SGD, torch.optim.Adagrad):
        return any(group["weight_decay"] for group in optimizer.param_groups)
    takes = (torch.optim.SparseAdam, torch.optim.LBFGS)
    return type(optimizer).__module__.startswith("torch.optim.") and type(optimizer) not in takes
