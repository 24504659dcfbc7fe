"""Sparse gradients, as embeddings with `sparse=True` have them, before they are contributed.

SGD, Adagrad and SparseAdam take gradients of rows (`tensors/rows.py`). For all other optimizers on
servers, a sparse gradient is made dense, and a line says so. With kind local, gradients stay as they
are: the optimizer of the worker gets them.
"""

from collections.abc import Callable

import torch

from polyrhythm.errors import UsageError
from polyrhythm.tensors.flat import FlatModel


class SparseGradients:
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        flat: FlatModel,
        say: Callable[[str], None],
    ) -> None:
        """`say` prints a message once for all workers of a job."""
        self._optimizer = type(optimizer).__name__
        self._rows_only = isinstance(optimizer, torch.optim.SparseAdam)
        self._model = model
        self._rows = flat.row_tensors
        self._say = say
        self._said: set[int] = set()

    def prepare(self, parameters: list[torch.Tensor]) -> None:
        """Make the gradients that are not contributed row by row dense."""
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
            elif id(parameter) not in self._rows or gradient.sparse_dim() != 1:
                parameter.grad = gradient.to_dense()
                if id(parameter) not in self._said:
                    self._said.add(id(parameter))
                    self._say(
                        f"the sparse gradient of {self._name_of(parameter)!r} is made dense for"
                        f" {self._optimizer}; only embeddings with sparse=True that SGD, Adagrad"
                        " (both without weight decay) or SparseAdam optimizes contribute rows"
                    )

    def _name_of(self, parameter: torch.Tensor) -> str:
        names = (name for name, each in self._model.named_parameters() if each is parameter)
        return next(names, "?")
