"""The optimizer that `worker.attach` returns: `step()` exchanges as the sync policy says.

It is a torch optimizer, so that schedulers take it, and shares the groups of the one it was made
from, so that the rates they set travel with each contribution.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from polyrhythm.errors import UsageError
from polyrhythm.learn.staging import Pacer
from polyrhythm.runtime.worker import WorkerNode
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.wire.messages import Progress

_MAY_CHANGE = ("params", "lr", "initial_lr", "swa_lr")


class Visits(Protocol):
    """What was visited since the last contribution."""

    @property
    def points(self) -> float: ...

    def collect(self) -> tuple[float, tuple[Progress, ...], int]:
        """The points, the progress through chunks that they make, and the number of the lease
        that the first of them was visited under; begins anew."""


class Exchange(torch.optim.Optimizer):
    def __init__(
        self,
        inner: torch.optim.Optimizer,
        node: WorkerNode,
        flat: FlatModel,
        visits: Visits,
        model: torch.nn.Module,
        pacer: Pacer | None = None,
    ) -> None:
        job = node.job
        assert job is not None
        self._inner = inner
        self._node = node
        self._flat = flat
        self._visits = visits
        self._pacer = pacer
        self._seats = [
            (table, key, tensor)
            for module in model.modules()
            for table in (module._parameters, module._buffers)
            for key, tensor in table.items()
        ]
        self._local = job.kind == "local"
        self._steps = max(1, job.local_steps) if self._local else 1
        self._step = 0
        self._objective: list[float] = []
        self._points: float | None = None
        super().__init__(inner.param_groups, inner.defaults)
        self.param_groups = inner.param_groups
        self.state = inner.state
        self._frozen = [
            parameter
            for group in self.param_groups
            for parameter in group["params"]
            if not parameter.requires_grad
        ]
        self._flat.remember(parameters=self._local)
        self._numbers = [
            {key: value for key, value in group.items() if key not in _MAY_CHANGE}
            for group in self.param_groups
        ]

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        objective: torch.Tensor | float | None = None,
        points: float | None = None,
    ) -> Any:
        """Contribute the gradients (or, kind local, take a local step and contribute every
        `--local-steps`-th time) and go on with the parameters that come back.

        `objective` is the loss to show and to journal; `points` is the weight of this step where
        the batches did not come from `worker.batches`. Gradients are consumed.
        """
        result = closure() if closure is not None else None
        if objective is not None:
            if isinstance(objective, torch.Tensor):
                objective = objective.detach().item()
            self._objective.append(float(objective))
        if points is not None:
            self._points = (self._points or 0.0) + points
        if self._local:
            self._inner.step()
        self._step += 1
        if self._pacer is not None:
            self._pacer.pace(self._points if self._points is not None else self._visits.points)
        if self._step % self._steps == 0 or self._node.asked:
            self._contribute()
        self._drop_gradients()
        return result

    def _drop_gradients(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @property
    def pending(self) -> bool:
        """Local steps were taken that no contribution has counted."""
        return self._step % self._steps > 0

    def contribute_rest(self) -> None:
        """Nothing more comes: contribute what was visited since the last contribution."""
        self._contribute()
        self._drop_gradients()

    step.hooked = True  # type: ignore[attr-defined]  # or torch wraps it for its profiler

    def _contribute(self) -> None:
        began_ns = time.monotonic_ns()
        self._check_seats()
        self._flat.check_homes()
        visited, progress, lease = self._visits.collect()
        weight = self._points if self._points is not None else visited or 1.0
        self._points = None
        self._check_numbers()
        self._check_frozen()
        rates = tuple(float(group["lr"]) for group in self.param_groups)
        objective = sum(self._objective) / len(self._objective) if self._objective else None
        self._objective.clear()
        with torch.no_grad():
            if self._local:
                self._flat.fill_changes(self._node.push)
            else:
                self._flat.fill_gradients(self._node.push)
        self._node.contribute(weight, rates, objective, progress, lease, began_ns)
        self._step = 0
        self._flat.remember(parameters=self._local)
        if self._pacer is not None:
            self._pacer.resume()

    def _check_numbers(self) -> None:
        """Only rates travel: another number that changes here would not change on the servers."""
        if self._local:
            return
        for before, group in zip(self._numbers, self.param_groups, strict=True):
            for key, value in before.items():
                if group[key] is not value and group[key] != value:
                    raise UsageError(
                        f"{key!r} changed from {value} to {group[key]}: only the learning rate may"
                        " change while training (OneCycleLR: cycle_momentum=False), or use --kind local"
                    )

    def _check_frozen(self) -> None:
        """What was frozen travels with the buffers: the servers would not optimize it."""
        thawed = sum(parameter.requires_grad for parameter in self._frozen)
        if thawed:
            raise UsageError(
                f"{thawed} parameter(s) require gradients that were frozen when the model was"
                " attached: freeze them only after attach(), or leave them frozen"
            )

    def _check_seats(self) -> None:
        """The model must still hold the tensors that were attached: others would not be trained."""
        for table, key, tensor in self._seats:
            if table.get(key) is not tensor:
                raise UsageError(
                    f"the model's {key!r} is not the tensor that was attached any more: something"
                    " replaced it (load_state_dict(assign=True)?); change it in place"
                )

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._inner.zero_grad(set_to_none=set_to_none)
