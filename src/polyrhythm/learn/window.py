"""The points that a training loop has visited since its last contribution.

What a worker has done since its last contribution: its steps, and the points that they visited.

The points that a training loop has visited, in a job with several models.

*The points of a batch count as visited once, when all steps with them are made: with the first
contribution after the next batch has begun, or when no batch follows.* Otherwise the last pass of a
job would be over at the first step with its last batch, and the steps of the other models with that
batch would be missing.

Steps that a worker leaves out. Either the step is not finite (`--on-nan skip`), or the user's code
has taken points and made no step with them.

*A step whose gradient is not finite changes nothing: a local optimizer does not take it, and it
adds nothing to the gradients of a contribution. A contribution without any other step is left out:
the worker abstains from the round.* The points of steps that are left out count as visited.

The micro-batches of a round that ends by the clock: the worker adds up their gradients, measures
their time, and abandons one that takes too long.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from polyrhythm.core.worker.cadence import Cadence
from polyrhythm.errors import ModelChanged, NotFinite
from polyrhythm.runtime.worker.loop import UserLoop
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.tensors.kinds import Kind
from polyrhythm.wire.messages import ChunkProgress, Leased
from polyrhythm.wire.messages.reasons import Reason, no_step, not_finite


class Visits:
    """The points visited since the last contribution, and the lease under which the first of them
    was visited."""

    def __init__(self) -> None:
        self.points = 0.0
        self.everything = 0
        """The number of points in this worker's lease; 0 if it is not known."""
        self.unstepped = 0
        """The number of batches since the last step."""
        self.in_step = 0.0
        """The number of points in the batches since the last step; if no batch has followed the
        last step, the points of that step, because another step may be made with them."""
        self.last = 0
        """The number of points in the last batch."""
        self.dropped = 0.0
        """How many of `points` were in batches that the training loop has dropped: no gradient was
        computed with them. They count as visited, but have no weight."""
        self.reported = -1
        """How many points the last `collect` reported as visited; -1: as many as it returned."""
        self._progress: dict[int, ChunkProgress] = {}
        self._lease = 0
        self._before: tuple[float, dict[int, ChunkProgress], float] = (0.0, {}, 0.0)
        self.put_back: Callable[[int], None] | None = None
        """A function that gives back the points of the last batches, so that they are visited
        again; None if that is not possible."""

    def begin(self, lease: int) -> None:
        """Note the lease of the points that follow. If points were visited since the last
        contribution, the lease of the first one counts."""
        if not self.pending:
            self._lease = lease

    def note(self, points: int, progress: Sequence[ChunkProgress]) -> None:
        """The training loop gets a batch of this many points."""
        if self.put_back is not None and not self.unstepped:
            self._before = (self.points, dict(self._progress), self.dropped)
        self._count(points)
        self._progress.update({step.chunk: step for step in progress})

    def _count(self, points: int) -> None:
        if not self.unstepped:
            self.in_step = 0.0
        self.unstepped += 1
        self.points += points
        self.in_step += points
        self.last = points

    def drop_batch(self) -> None:
        """The training loop has dropped the last batch, and uses gradients of earlier ones."""
        self.dropped += self.last
        self.in_step -= self.last

    def drop_batches(self) -> None:
        """The training loop has dropped all batches since the last step."""
        self.dropped += self.in_step
        self.in_step = 0.0
        self.unstepped = 0

    def stepped(self) -> None:
        """A step was made with the points of all batches so far."""
        self.unstepped = 0

    @property
    def returnable(self) -> bool:
        """Whether `take_back` is possible."""
        return self.put_back is not None

    def take_back(self) -> None:
        """Give back the points of the batches since the last step, so that they are visited
        again."""
        assert self.put_back is not None
        self.points, self._progress, self.dropped = self._before
        self.put_back(self.unstepped)
        self.unstepped = 0

    def drop(self) -> None:
        """Forget the points: they will never count."""
        self.points, self._progress, self.unstepped = 0.0, {}, 0
        self.in_step = self.dropped = 0.0

    def close(self) -> None:
        """No model will make a further step with the batches so far."""

    @property
    def pending(self) -> bool:
        """Whether points were visited since the last contribution."""
        return self.points > 0

    def collect(self) -> tuple[float, tuple[ChunkProgress, ...], int]:
        """Return the number of points (without the points of dropped batches), the progress through
        chunks, and the number of the lease under which the first point was visited. Then begin at
        zero."""
        points, progress = self.points - self.dropped, tuple(self._progress.values())
        in_step = self.in_step
        self.drop()
        self.in_step = in_step
        return points, progress, self._lease


class VisitedPasses:
    """How often the training loop has visited all points of its lease. A batch counts as visited
    when the loop gets it."""

    def __init__(self, loop: UserLoop) -> None:
        self.first = 0
        self._loop = loop
        self._been: dict[int, int] | None = None
        """Per chunk that this worker has visited, its passes. None: passes are not counted."""

    def begin(self, lease: Leased) -> None:
        """A training loop over the points of this lease begins."""
        if self._been is None:
            self._been = {}
            self.first = min((chunk.passes for chunk in lease.chunks), default=0)

    def visited(self, progress: Sequence[ChunkProgress]) -> None:
        if self._been is not None:
            self._been.update({step.chunk: step.passes for step in progress})

    @property
    def now(self) -> int | None:
        been, lease = self._been, self._loop.lease
        if been is None or lease is None:
            return None if been is None else self.first
        passes = (max(chunk.passes, been.get(chunk.chunk, 0)) for chunk in lease.chunks)
        return min(passes, default=self.first)


class Uncontributed:
    def __init__(self, visits: Visits, cadence: Cadence) -> None:
        self._visits = visits
        self._cadence = cadence
        self.steps = 0
        self.given: float | None = None
        """The number of points that the user's code gave with its steps; None if it gave no number."""
        self.stepped = 0.0
        """The number of points between the last contribution and the last step, without those that
        the training loop dropped."""
        self.whole_steps = 0.0
        """How many steps over whole batches the steps are worth."""

    def give(self, points: float) -> None:
        self.given = (self.given or 0.0) + points

    def end_step(self, whole: float) -> None:
        """`whole`: the size of the step as a share of a step over whole batches."""
        self.steps += 1
        self.stepped = self.weighed
        self.whole_steps += whole

    def take_back(self, whole: float) -> None:
        """Undo the last step."""
        self.steps -= 1
        self.stepped = self.weighed
        self.whole_steps -= whole

    def forget(self) -> None:
        self.steps, self.given, self.stepped, self.whole_steps = 0, None, 0.0, 0.0

    def take_steps(self) -> tuple[int, float]:
        """The number of steps, and how many steps over whole batches they are worth. Then begin at
        zero."""
        steps, whole = max(1, self.steps), self.whole_steps
        self.steps, self.whole_steps = 0, 0.0
        return steps, whole

    @property
    def visited(self) -> float:
        """The number of points since the last contribution."""
        return self.given if self.given is not None else self._visits.points

    @property
    def weighed(self) -> float:
        """How many of the points since the last contribution were used to compute gradients."""
        return self.given if self.given is not None else self._visits.points - self._visits.dropped

    @property
    def in_step(self) -> float:
        """How many of the points since the last step were used to compute gradients."""
        return self.weighed - self.stepped

    def share(self) -> float:
        """The size of the step as a share of a whole step: less than 1 if it has fewer points than a
        whole step."""
        return 1.0 if self.given is not None else self._cadence.share(self._visits.in_step)

    def take_weight(self, collected: float) -> float:
        """The weight of a contribution. `collected`: how many points of new batches it contains; 0 if it
        is another step with batches that an earlier contribution contained."""
        given, self.given = self.given, None
        return (given if given is not None else collected or self._visits.in_step) or 1.0

    def reported(self, *, several: bool, first: bool) -> int:
        """How many points the contribution reports as visited; -1: as many as its weight. If the
        user's code gives the points of each step, only the points of the model that steps first
        count. `several`: the worker has several models. `first`: the contribution is a step of the
        model that steps first."""
        if self.given is None or not several:
            return self._visits.reported
        return round(self.given) if first else 0


@dataclass(slots=True)
class _Batches:
    """Batches that were drawn one after the other. `lease`: the lease of the first batch."""

    points: int = 0
    progress: dict[int, ChunkProgress] = field(default_factory=dict)
    lease: int = 0

    def add(self, other: "_Batches") -> None:
        if not self.points:
            self.lease = other.lease
        self.points += other.points
        self.progress.update(other.progress)


class SharedVisits(Visits):
    def __init__(self) -> None:
        super().__init__()
        self._drawn = 0
        """The number of the lease from which the next batch is drawn."""
        self._open = _Batches()
        """The newest batches. The user's loop may make another step with them."""
        self._closed = _Batches()
        """Batches with which all steps have been made, but which no contribution has reported
        yet."""

    def begin(self, lease: int) -> None:
        self._drawn = lease

    def note(self, points: int, progress: Sequence[ChunkProgress]) -> None:
        if not self.unstepped:
            self.close()
        batch = _Batches(points, {step.chunk: step for step in progress}, self._drawn)
        self._open.add(batch)
        self._count(points)

    def close(self) -> None:
        """No model will make a further step with the batches so far."""
        if self._open.points:
            self._closed.add(self._open)
            self._open = _Batches()

    def drop(self) -> None:
        super().drop()
        self._open, self._closed = _Batches(), _Batches()

    @property
    def pending(self) -> bool:
        return self._open.points > 0 or self._closed.points > 0

    def collect(self) -> tuple[float, tuple[ChunkProgress, ...], int]:
        points, closed = self.points, self._closed
        lease = closed.lease if closed.points else self._open.lease
        self.points, self._closed = 0.0, _Batches()
        self.reported = closed.points
        return points, tuple(closed.progress.values()), lease


SCALER_SKIPPED = "a GradScaler made no step, because a gradient holds NaN or infinity"
NO_STEP = "the training loop made no step with its last points"
NOT_MADE = "step"
"""The value of `NotFinite.what` for a step that the training loop has not made."""


class LeftOut:
    def __init__(self, worker: str, flat: FlatModel, on_nan: str) -> None:
        self.skips = on_nan == "skip"
        self.made = 0
        """The number of steps of this worker since it attached its model."""
        self._worker = worker
        self._flat = flat
        self._steps, self._points = 0, 0.0
        """The steps since the last contribution that are left out, and their points."""
        self._without = 0
        """For how many of the left out steps the training loop has not called `optimizer.step`."""
        self._why: NotFinite | None = None

    def step(self, points: float, model: int | None = None) -> bool:
        """The worker has computed a step over this many points. `model`: the number of the model
        that makes the step, if there are several. Returns whether the step is left out."""
        if self.skips:
            try:
                self._flat.check_gradients(model)
            except NotFinite as error:
                self.leave(points, error)
                return True
        self.made += 1
        return False

    def stepped(self, points: float) -> bool:
        """The worker has made a local step with a closure. The gradients were not known before the step.
        Returns whether the step is left out, because the parameters after it are not finite."""
        if self.skips:
            try:
                self._flat.check_parameters()
            except NotFinite as error:
                self.leave(points, error)
                return True
        self.made += 1
        return False

    def leave(self, points: float, why: NotFinite) -> None:
        """Leave out a step over this many points."""
        self.made += 1
        self._why = self.named(why)
        self._steps += 1
        self._without += why.what == NOT_MADE
        self._points += points
        self._flat.restore_buffers(sums=False)

    def named(self, error: NotFinite) -> NotFinite:
        """The error, with the name of the worker and the number of its step added."""
        return error.at(self._worker, self.made)

    def changed(self, error: ModelChanged) -> ModelChanged:
        """The error about a changed model, with the name of the worker and the number of its step
        added."""
        return error.at(self._worker, self.made)

    def take(self, steps: int) -> tuple[int, float, NotFinite | None]:
        """The worker contributes `steps` steps. Returns how many of them are left out because they are
        not finite, how many points all steps that are left out have, and the reason if no other step
        remains. Then set all counts to zero."""
        count, points, why = self._steps, self._points, self._why
        not_finite = count - self._without
        self._steps, self._points, self._without, self._why = 0, 0.0, 0, None
        return not_finite, points, why if count and count >= steps else None


def not_made() -> NotFinite:
    """The error for a training loop that has made no step."""
    return NotFinite(NO_STEP, what=NOT_MADE)


def reason_of(error: NotFinite) -> Reason:
    if error.what == NOT_MADE:
        return no_step(error.step, str(error))
    return not_finite(error.what, error.tensor, error.step, str(error))


class MicroBatches:
    def __init__(
        self,
        node: WorkerNode,
        flat: FlatModel,
        visits: Visits,
        kind: Kind,
        cadence: Cadence,
        *,
        several: bool,
    ) -> None:
        """`several`: the worker has several models."""
        self._node = node
        self._flat = flat
        self._visits = visits
        self._kind = kind
        self._cadence = cadence
        self._several = several
        self._ended_ns = 0
        """The computing time of this round at the end of the last micro-batch."""
        self._abandoned_ns = 0
        self.gathered = 0.0
        """The number of points of the micro-batches of this round."""

    def begin_round(self) -> None:
        self._ended_ns = 0
        self.gathered = 0.0

    def abandons(self) -> bool:
        """Whether to abandon the step that was just computed because it took too long. Only points
        from `worker.batches` are abandoned, because only these can be visited again."""
        if not self._visits.returnable:
            return False
        return self._cadence.abandons(-self._node.interval_left_ns(), self.gathered)

    def abandon(self) -> None:
        """The micro-batch that was just computed is abandoned: count its time."""
        self._abandoned_ns += self._node.timesheet.computed_ns() - self._ended_ns
        self._node.look()

    def take_abandoned_ns(self) -> int:
        """Return the time of the micro-batches that were abandoned since the last call."""
        abandoned_ns, self._abandoned_ns = self._abandoned_ns, 0
        return abandoned_ns

    def drop(self) -> None:
        """The training loop has dropped micro-batches: their time does not count as computing. Also
        read whether the lead has asked all workers to contribute."""
        self._ended_ns = self._node.timesheet.computed_ns()
        self._node.look()

    def end(self, weighed: float, *, skipped: bool) -> None:
        """End a micro-batch: gather the gradients unless the step is `skipped`, measure the time,
        and read whether the lead has asked all workers to contribute. `weighed`: the number of
        points since the last contribution, without the points of dropped batches."""
        points = weighed - self.gathered
        self.gathered += points
        if not skipped:
            self._kind.gather(self._flat, points or 1.0)
        # a further step with the same points: its time is added to the time of the next points
        if self._several and not points:
            self._node.look()
            return
        now_ns = self._node.timesheet.computed_ns()
        self._cadence.measured(points, now_ns - self._ended_ns)
        self._ended_ns = now_ns
        self._node.look()
