"""Creates the actors of a job on a Ray cluster, and gives each its place.

The servers are one placement group, which spreads them over the nodes and is removed when the job
ends. Each worker has a separate place: Ray places it when there is room, and an autoscaler sees
waiting workers. In a trial of Ray Tune, all processes have their places in the placement group of
the trial.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from polyrhythm.core.cluster import CPU, GPU, Demand, threads_for
from polyrhythm.engines.ray_messages import ActorPlace
from polyrhythm.engines.ray_process import GROUPS, RayProcess
from polyrhythm.engines.requests import ChildRequest
from polyrhythm.errors import UsageError

_KINDS = {CPU: "num_cpus", GPU: "num_gpus", "memory": "memory"}
"""Resources with their own parameter in the options of an actor."""


@dataclass(slots=True)
class Actor:
    """The newest actor with the name of a process."""

    name: str
    demand: Demand
    handle: Any
    heard: Any = None
    """The result of the present call of the actor's `hear`, which has not returned yet."""
    running: Any = None
    """The result of the call of the actor's `run`, which returns when the process ends."""
    confirmed: int = 0
    sent: int = 0
    place: ActorPlace | None = None
    ended: bool = False
    died_s: float | None = None
    """When the process ended without an exit status."""
    killed_s: float | None = None
    """When the supervisor ordered to kill the process."""
    leaves: bool = False
    """Whether the process was told to leave, because its node will be removed."""
    given_up: bool = False
    """Whether the process was killed because it had no place when the job ended."""

    @property
    def address(self) -> str:
        return "" if self.place is None else self.place.address

    def listen(self) -> None:
        """Request the next messages of the process."""
        self.heard = self.handle.hear.remote(self.confirmed)

    def kill(self) -> None:
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(self.handle)


class ActorMaker:
    def __init__(
        self,
        requests: Sequence[ChildRequest],
        demands: Mapping[str, Demand],
        threads: int | None,
    ) -> None:
        """`demands`: what each process asks for, by its name. `threads`: how many threads torch uses in
        each worker; None: as many as it has CPUs."""
        self._job = requests[0].job
        self._run = Path(requests[0].run_dir).name
        self._roles = {request.name: request.role for request in requests}
        self._demands = demands
        self._threads = threads or (1 if self._job.deterministic else None)
        self._made: dict[str, int] = {}
        """How many actors were made for each process."""
        self._given: Any = None
        """The placement group in which this process runs, such as that of a trial of Ray Tune."""
        self._group: Any = None
        """The group that this object has made."""
        self._bundles: dict[str, int] = {}

    def make_all(self) -> Iterator[Actor]:
        """Ask Ray for a place for every process of the job. Raises UsageError if Ray does not understand
        what the processes ask for."""
        self._given = ray.util.get_current_placement_group()
        try:
            if self._given is None:
                self._make_group()
            for name in self._roles:
                yield self.make(name)
        except ValueError as error:
            said = "".join(map(str, error.args))
            raise UsageError(f"Ray refuses what the processes ask for: {said}") from None

    def _make_group(self) -> None:
        servers = [name for name, role in self._roles.items() if role == "server"]
        demands = [self._demands[name] for name in servers]
        if not all(any(each.resources.values()) for each in demands):
            return  # Ray has no groups of processes that ask for nothing
        labels = [dict(each.labels) for each in demands]
        self._group = placement_group(
            [_positive(each.resources) for each in demands],
            strategy="SPREAD",
            name=f"polyrhythm: servers of {self._run} ({self._job.job})",
            **({"bundle_label_selector": labels} if any(labels) else {}),
        )
        self._bundles = {name: number for number, name in enumerate(servers)}

    def make(self, name: str) -> Actor:
        """Create the next actor of a process. It loads its modules while it waits for its
        request."""
        demand = self._demands[name]
        made = self._made[name] = self._made.get(name, 0) + 1
        incarnation = f" ({made})" if made > 1 else ""
        options: dict[str, Any] = {"scheduling_strategy": "SPREAD"}
        if name in self._bundles:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=self._bundles[name]
            )
        elif self._given is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._given)
        elif demand.labels:
            options["label_selector"] = dict(demand.labels)
        handle = (
            _actor_class()
            .options(
                name=f"{self._run}: {name}{incarnation}",
                namespace=f"polyrhythm-{self._job.job}",
                **_options_of(demand),
                **options,
            )
            .remote(name, self._roles[name], self._job.kind, self.threads_of(name))
        )
        actor = Actor(name, demand, handle)
        actor.listen()
        handle.warm.remote()
        return actor

    def threads_of(self, name: str) -> int:
        """How many threads torch uses in a process."""
        own = self._threads if self._roles[name] == "worker" else None
        return own or threads_for(self._demands[name])

    def leave_bundle(self, name: str) -> None:
        """Place the next actor of this process outside the group of the servers, because its bundle
        stays on a node that will be removed."""
        self._bundles.pop(name, None)

    def remove_group(self) -> None:
        if self._group is not None:
            remove_placement_group(self._group)


@functools.cache
def _actor_class() -> Any:
    remote: Any = ray.remote  # Ray's types do not know all of its options
    return remote(concurrency_groups=GROUPS, max_restarts=0, max_task_retries=0)(RayProcess)


def _positive(resources: Mapping[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in resources.items() if amount}


def _options_of(demand: Demand) -> dict[str, Any]:
    resources = demand.resources
    options: dict[str, Any] = {
        option: resources.pop(name) for name, option in _KINDS.items() if name in resources
    }
    return {**options, "resources": _positive(resources)}
