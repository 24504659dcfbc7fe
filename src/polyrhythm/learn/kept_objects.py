"""`worker.keep`: the state of the user's code that goes into checkpoints, such as a scheduler or an
average of the parameters."""

import sys
from collections.abc import Mapping
from typing import Any, Protocol

from polyrhythm.errors import UsageError
from polyrhythm.learn.attached import AttachedOptimizer
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.store.kept import decode_state, encode_state
from polyrhythm.store.tensor_file import Encoded

_RATES = ".rates"
"""The name of the entry with the learning rates. No object can have this name, because it is not an
identifier."""


class Stateful(Protocol):
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


class KeptObjects:
    """The objects that the user's code keeps, by their names."""

    def __init__(self, node: WorkerNode) -> None:
        self._node = node
        self._objects: dict[str, Stateful] = {}
        self._groups: list[list[dict[str, Any]]] = []
        """The parameter groups of each model."""
        self._found: dict[str, Any] | None = None
        """The states in the checkpoint whose objects were not given to `keep` yet."""
        self._anew = False
        """Whether the checkpoint lacks the state of one of the objects."""

    @property
    def resumed(self) -> bool:
        """Whether there are objects, and all of them have their states from the checkpoint."""
        return self._found is not None and bool(self._objects) and not self._anew

    def attach(self, groups: list[list[dict[str, Any]]]) -> None:
        """Remember the parameter groups of each model. Their learning rates are saved together with
        a scheduler, because its state does not contain the present rates."""
        self._groups = groups

    def add(self, objects: Mapping[str, Any], *, resumes: bool) -> None:
        """Keep these objects from now on. `resumes`: the job continues from a checkpoint, so the
        objects get the states that it contains."""
        for name, each in objects.items():
            if not name.isidentifier():
                raise UsageError(f"keep() got the name {name!r}: it must be an identifier")
            if name in self._objects:
                raise UsageError(f"keep() has {name!r} already")
            if isinstance(each, AttachedOptimizer) and not each.holds_state:
                raise UsageError(
                    f"leave {name!r} out of keep(): the servers hold the optimizer's state, which is"
                    " in every checkpoint already"
                )
            for method in ("state_dict", "load_state_dict"):
                if not callable(getattr(each, method, None)):
                    raise UsageError(f"{name!r} cannot be kept: it has no {method}()")
        encode_state({name: each.state_dict() for name, each in objects.items()})
        if resumes and self._found is None:
            self._found = self._restored()
        self._objects.update(objects)
        if not resumes:
            self._node.state.keep(self._encoded)
            return
        for name, each in objects.items():
            self._restore(name, each)

    def _restored(self) -> dict[str, Any]:
        data = self._node.state.restore(self._encoded)
        return decode_state(data) if data else {}

    def _restore(self, name: str, each: Stateful) -> None:
        assert self._found is not None
        if name not in self._found:
            self._anew = True
            self._say(f"the checkpoint has no state of {name!r}, which keeps its initial state")
            return
        state = self._found.pop(name)
        try:
            each.load_state_dict(state)
        except Exception as error:
            raise UsageError(f"the checkpoint's state does not fit {name!r}: {error}") from error
        self._restore_rates(each)

    def begin_step(self) -> None:
        """End an iteration of a loop that does not use `worker.batches`: `step()` was called.
        Before the first step, print a line if the checkpoint has states of objects that were not
        given to `keep` again."""
        self._node.state.end_iteration()
        if self._found:
            left = sorted(name for name in self._found if name != _RATES)
            self._found = {}
            if left:
                self._say(
                    f"the checkpoint's state of {', '.join(left)} is not used, because"
                    " keep() was not called for it"
                )

    # -- learning rates ------------------------------------------------------------------------

    def _restore_rates(self, each: Stateful) -> None:
        """If this is the scheduler of a model, restore the learning rates of that model."""
        assert self._found is not None
        scheduled = getattr(getattr(each, "optimizer", None), "param_groups", None)
        rates = list(self._found.get(_RATES, []))
        for groups in self._groups:
            mine, rates = rates[: len(groups)], rates[len(groups) :]
            for group, rate in zip(groups, mine, strict=False) if groups is scheduled else ():
                if isinstance(group["lr"], float | int):
                    group["lr"] = rate
                else:
                    # torch also allows a tensor as the learning rate: change it in place
                    group["lr"].fill_(rate)

    # -- for a cut -----------------------------------------------------------------------------

    def _encoded(self) -> Encoded:
        states = {name: each.state_dict() for name, each in self._objects.items()}
        if self._groups:
            states[_RATES] = [float(group["lr"]) for groups in self._groups for group in groups]
        return encode_state(states)

    def _say(self, text: str) -> None:
        print(f"polyrhythm: {self._node.name}: {text}", file=sys.stderr, flush=True)
