"""The loop around a contribution, for training loops (`learn/exchange.py`) and for point-wise
algorithms (`learn/pointwise/runner.py`).

The contributor applies the cadence (`core/worker/cadence.py`) to this worker: it knows the time,
the orders of the lead, and the steps since the last contribution.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from msgspec.structs import replace

from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.worker.cadence import Due, Standing, choose_cadence, decide
from polyrhythm.core.worker.window import Window
from polyrhythm.learn.slowdowns import Pacer
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire.messages import ContributionReport, Leased
from polyrhythm.wire.messages.reasons import Reason


class TakesLeases(Protocol):
    """The points of the lease, in the order in which they are visited."""

    @property
    def everything(self) -> int:
        """The number of points in the lease."""

    def take(self, lease: Leased) -> bool:
        """Use a new lease. Returns True if the worker was evicted and joined again; points that it
        visited before then do not count."""


class Contributor:
    def __init__(self, node: WorkerNode, window: Window, pacer: Pacer | None) -> None:
        assert node.job is not None
        self._node = node
        self._loop = node.loop
        self._window = window
        self._pacer = pacer
        self.cadence = choose_cadence(node.job)
        self.traits = traits_of(node.job.sync)
        self.in_flight = False
        """Whether this worker trains while the version with its last contribution has not arrived
        yet. Only a policy with the trait `trains_through` permits that."""

    def iterations(
        self,
        source: TakesLeases,
        lease: Leased,
        stopped: Callable[[], bool],
        before: Callable[[], None] = lambda: None,
    ) -> Iterator[bool]:
        """Yield once per iteration of the user's loop, after applying the newest lease. `lease`:
        the first lease. `before` is called before that, and may contribute. Yields whether the
        worker has rejoined, so that its window was dropped."""
        node, window = self._node, self._window
        while not stopped():
            node.state.end_iteration()
            if node.points is not None:
                node.points.between_batches()
            before()
            lease = node.loop.lease or lease
            rejoined = source.take(lease)
            if rejoined:
                window.drop()
            window.begin(lease.number, source.everything)
            yield rejoined

    def standing(self) -> Standing:
        left_ns = self._node.interval_left_ns()
        return self._window.standing(in_flight=self.in_flight, left_ns=left_ns)

    def due(self) -> bool:
        """Whether to contribute now."""
        node, loop = self._node, self._loop
        if loop.stopped:
            return False
        called = loop.hurried or node.stopping
        due = decide(self.cadence, self.standing(), loop.terms, asked=loop.asked, called=called)
        if due is Due.PASSED_ALL:
            node.ask_for_barrier()
        return due is not Due.NO

    # -- time ----------------------------------------------------------------------------------

    def pace(self) -> None:
        """Make the step that has just ended longer, if this worker is to be slow on purpose."""
        if self._pacer is not None:
            self._pacer.pace(self._window.points)

    def set_share(self, points: int, batch: int) -> None:
        """Set the length of the step that begins, which is over this many points. `batch`: the size
        of the batches that the user's loop asks for."""
        if self._pacer is not None:
            self._pacer.share = points / batch if self.traits.gathers else 1.0

    def measure(self, points: float) -> None:
        """Measure the time of a step, or micro-batch, over this many points."""
        took_ns = self._window.lap(self._node.timesheet.computed_ns())
        self.cadence.on_measured(points, took_ns)

    def exclude_from_pace(self, nanoseconds: int) -> None:
        """Do not count this time as a part of the present step."""
        if self._pacer is not None:
            self._pacer.exclude_time(nanoseconds)

    def resume_pace(self) -> None:
        """Measure the length of the next step from now on: the worker computes again. This matters
        if its steps are made longer on purpose."""
        if self._pacer is not None:
            self._pacer.resume(self._node.timesheet.resumed_ns)

    # -- contributions -------------------------------------------------------------------------

    def report(self, *, first: bool = True) -> ContributionReport:
        """End the window with a contribution, and return the report of it. `first`: see
        `Window.contribute`."""
        batch, micro_ns = self.cadence.micro_batch()
        report = self._window.contribute(first=first, varies=self.traits.gathers)
        return replace(report, batch=batch, micro_ns=micro_ns)

    def abstain(self, skipped: Reason | None = None, model: int = -1) -> None:
        """End the window without a contribution, and wait until the sync policy lets this worker
        continue. `skipped` and `model`: see `WorkerNode.abstain`."""
        lease, progress = self._window.abstain()
        self._node.abstain(lease, skipped, progress, model)
