"""What a worker has done since its last contribution: the steps that it has made, the points that
they visited, and what it has left out. The user's loop and the simulated loop fill the same object.

*A window ends in exactly one of these ways, each of which empties it:*

| method       | the steps                        | the points                                     |
|--------------|----------------------------------|------------------------------------------------|
| `contribute` | are in a contribution            | count as visited                               |
| `abstain`    | are left out of the parameters   | count as visited                               |
| `drop`       | never count: the worker has      | do not count; the next lease says which of     |
|              | rejoined, or the job has ended   | them are to be visited                         |
| `take_back`  | only the last one: never made    | those of the last step are visited again       |

In a job with several models, *the points of a batch count as visited once, when all steps with them
are made. They count with the first contribution after the next batch has begun, or when no batch
follows.* Otherwise the last pass of a job would be over at the first step with its last batch, and
the steps of the other models with that batch would be missing.

*A step that is not finite changes nothing* (`--on-nan skip`): a local optimizer does not make it,
and it adds nothing to the gradients of a contribution. If no other step remains, the worker
abstains.
"""

from collections.abc import Callable, Sequence
from typing import SupportsFloat

import msgspec
from msgspec.structs import replace

from polyrhythm.core.worker.cadence import Standing
from polyrhythm.errors import NotFinite
from polyrhythm.wire.messages import ChunkProgress, ContributionReport


class _Batches(msgspec.Struct):
    """Consecutive batches. `lease`: the lease of the first batch."""

    points: int = 0
    progress: dict[int, ChunkProgress] = {}
    lease: int = 0

    def add(self, points: int, progress: Sequence[ChunkProgress], lease: int) -> None:
        if not self.points:
            self.lease = lease
        self.points += points
        for step in progress:
            self.progress[step.chunk] = step

    def copy(self) -> "_Batches":
        return replace(self, progress=dict(self.progress))


class _Work(msgspec.Struct):
    """The contents of a window: what was done since the last contribution."""

    points: float = 0.0
    """The points of the batches that the training loop got."""
    dropped: float = 0.0
    """How many of `points` were in batches that the training loop has dropped: it computed no
    gradient with them. They count as visited, but have no weight."""
    given: float | None = None
    """The number of points that the user's code gave with its steps; None if it gave no number."""
    visited: _Batches = msgspec.field(default_factory=_Batches)
    """The batches that the next contribution reports as visited."""
    steps: int = 0
    whole_steps: float = 0.0
    """The number of steps, in steps over whole batches."""
    stepped: float = 0.0
    """The weight at the last step."""
    losses: list[tuple[SupportsFloat, float]] = []
    """Per step: the user's loss, and the number of its points."""
    first_loss: tuple[SupportsFloat, int] | None = None
    left_out: int = 0
    left_out_points: float = 0.0
    not_made: int = 0
    """The number of left out steps for which the training loop has not called `optimizer.step`."""
    why: NotFinite | None = None
    """Why the last left out step was left out."""
    gathered: float = 0.0
    """How many points were used to compute gradients, up to the end of the last micro-batch."""
    ended_ns: int = 0
    """The computing time of this round at the end of the last micro-batch."""
    abandoned_ns: int = 0

    def copy(self) -> "_Work":
        return replace(self, visited=self.visited.copy(), losses=self.losses[:])

    @property
    def weighed(self) -> float:
        return self.points - self.dropped if self.given is None else self.given

    @property
    def loss(self) -> float | None:
        """The mean of the losses over their points; None if there is no loss."""
        if not self.losses:
            return None
        points = sum(count for _, count in self.losses)
        return sum(float(loss) * count for loss, count in self.losses) / points


class Window:
    def __init__(self, *, several: bool = False) -> None:
        """`several`: the worker has several models."""
        self.everything = 0
        """The number of points in this worker's lease; 0 if it is not known."""
        self.put_back: Callable[[int], None] | None = None
        """A function that gives the points of the last batches back, so that they are visited
        again; None if that is not possible."""
        self.batches = 0
        """The number of batches since the last step."""
        self.batch_points = 0.0
        """The number of points in the batches since the last step. Without such a batch: the points
        of the last step, because another step may be made with them."""
        self.last_batch = 0
        """The number of points in the last batch."""
        self._several = several
        self._lease = 0
        """The number of the lease from which the next batch is drawn."""
        self._work = _Work()
        self._open = _Batches()
        """With several models: the newest batches, with which the user's loop may make another
        step."""
        self._before: tuple[_Work, _Batches] | None = None
        """The contents of the window before the first batch of the present step, which `take_back`
        restores. None if the step cannot be undone."""

    # -- points --------------------------------------------------------------------------------

    def begin(self, lease: int, everything: int = 0) -> None:
        """From now on, batches come from the lease with this number, which has this many points."""
        self._lease, self.everything = lease, everything

    def note(self, points: int, progress: Sequence[ChunkProgress] = ()) -> None:
        """Note a batch of this many points for the training loop."""
        work = self._work
        if not self.batches:
            if self.put_back is not None:
                self._before = work.copy(), self._open.copy()
            if self._several:
                self.close_batches()
            self.batch_points = 0.0
        (self._open if self._several else work.visited).add(points, progress, self._lease)
        work.points += points
        self.batches += 1
        self.batch_points += points
        self.last_batch = points

    def close_batches(self) -> None:
        """Note that no model will make a further step with the batches so far."""
        if self._open.points:
            batches, self._open = self._open, _Batches()
            visited = self._work.visited
            visited.add(batches.points, tuple(batches.progress.values()), batches.lease)

    def drop_batch(self) -> None:
        """Note that the training loop has dropped the last batch, and makes its step with the
        gradients of earlier batches."""
        self._work.dropped += self.last_batch
        self.batch_points -= self.last_batch

    def drop_batches(self) -> None:
        """Note that the training loop has dropped all batches since the last step."""
        self._work.dropped += self.batch_points
        self.batch_points = 0.0
        self.end_batches()

    def end_batches(self) -> None:
        """Note a step that was made with all batches so far."""
        self.batches, self._before = 0, None

    def give(self, points: float) -> None:
        """Note how many points the step has, if the user's code reports it."""
        self._work.given = (self._work.given or 0.0) + points

    @property
    def is_given(self) -> bool:
        """Whether the user's code says how many points its steps have."""
        return self._work.given is not None

    @property
    def has_points(self) -> bool:
        """Whether points were visited that no contribution has reported."""
        return self._open.points > 0 or self._work.visited.points > 0

    @property
    def points(self) -> float:
        """The number of points visited."""
        work = self._work
        return work.points if work.given is None else work.given

    @property
    def weighed(self) -> float:
        """How many of the points were used to compute gradients."""
        return self._work.weighed

    @property
    def new_points(self) -> float:
        """How many of the points since the last step were used to compute gradients."""
        return self._work.weighed - self._work.stepped

    # -- steps ---------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        return self._work.steps

    def end_steps(self, steps: int = 1, whole: float = 1.0) -> None:
        """Note steps that have ended. `whole`: their number in steps over whole batches."""
        work = self._work
        work.steps += steps
        work.whole_steps += whole
        work.stepped = work.weighed

    def leave_out(self, points: float, why: NotFinite, *, made: bool = True) -> None:
        """Leave the present step out, with the weight of this many points. `made`: whether the
        training loop has made the step."""
        work = self._work
        work.left_out += 1
        work.not_made += not made
        work.left_out_points += points
        work.why = why

    def add_loss(self, loss: SupportsFloat, points: float) -> None:
        """Add the loss of a step, which is the mean over this many points."""
        self._work.losses.append((loss, points if points > 0 else 1.0))

    def keep_first_loss(self) -> None:
        """Keep the last added loss: it belongs to the first local step of the round, before the
        step changed the model."""
        self._work.first_loss = self._work.losses[-1][0], round(self._work.weighed)

    @property
    def first_loss(self) -> tuple[SupportsFloat, int] | None:
        """The loss of the first local step of the round, and the number of its points."""
        return self._work.first_loss

    def standing(self, *, in_flight: bool, left_ns: int) -> Standing:
        work = self._work
        points = work.points if work.given is None else work.given
        return Standing(work.steps, points, self.everything, in_flight, left_ns)

    # -- micro-batches -------------------------------------------------------------------------

    @property
    def gathered(self) -> float:
        """The number of points in this round's micro-batches so far."""
        return self._work.gathered

    def gather(self) -> float:
        """End a micro-batch. Returns the number of its points."""
        work = self._work
        points = work.weighed - work.gathered
        work.gathered += points
        return points

    def lap(self, computed_ns: int) -> int:
        """Return the computing time since the last call. `computed_ns`: the computing time of this
        round."""
        work = self._work
        took_ns, work.ended_ns = computed_ns - work.ended_ns, computed_ns
        return took_ns

    def add_abandoned(self, nanoseconds: int) -> None:
        """Note the time that the worker spent on a micro-batch that it leaves out."""
        self._work.abandoned_ns += nanoseconds

    # -- the ends of a window ------------------------------------------------------------------

    @property
    def weight(self) -> float:
        """The weight of the contribution. A step with batches of an earlier contribution has the
        weight of these batches."""
        work = self._work
        points = work.given
        if points is None:
            points = work.points - work.dropped or (self.batch_points if work.steps else 0.0)
        points = points or 1.0
        return points - work.left_out_points if points > work.left_out_points else 1.0

    @property
    def void(self) -> NotFinite | None:
        """Why the worker has nothing to contribute: all of its steps are left out. None if some
        step remains."""
        work = self._work
        return work.why if work.left_out and work.left_out >= work.steps else None

    def contribute(self, *, first: bool = True, varies: bool = False) -> ContributionReport:
        """End the window with a contribution, and return its report. `first`: with several models,
        the contribution is a step of the model that steps first. If the user's code reports the
        points of its steps, only the points of that model count as visited. `varies`: steps may
        have fewer points than a whole batch."""
        weight, (lease, work) = self.weight, self._end()
        visited = -1
        if self._several:
            visited = work.visited.points
            if work.given is not None:
                visited = round(work.given) if first else 0
        return ContributionReport(
            weight=weight,
            objective=work.loss,
            progress=tuple(work.visited.progress.values()),
            lease=lease,
            steps=max(1, work.steps),
            abandoned_ns=work.abandoned_ns,
            skipped=work.left_out - work.not_made,
            visited=visited,
            whole_steps=work.whole_steps if varies else -1.0,
        )

    def abstain(self) -> tuple[int, tuple[ChunkProgress, ...]]:
        """End the window without a contribution. Returns the lease of the first point, and the
        progress to report."""
        lease, work = self._end()
        return lease, tuple(work.visited.progress.values())

    def drop(self) -> None:
        """End the window and discard it: nothing in it will ever count."""
        self._end()
        self._open = _Batches()
        self.batch_points = 0.0

    @property
    def can_take_back(self) -> bool:
        """Whether the points of the present step can be visited again: they came from batches, and
        no step was made with them before."""
        return self._before is not None and not self.is_given

    def take_back(self, computed_ns: int) -> None:
        """Undo the last step, as if its batches had never been drawn, and give back their points.
        `computed_ns`: see `lap`; the time of the step counts as abandoned."""
        assert self.put_back is not None and self._before is not None
        work, self._open = self._before
        work.abandoned_ns += computed_ns - self._work.ended_ns
        self._work = work
        self.put_back(self.batches)
        self.end_batches()

    def _end(self) -> tuple[int, _Work]:
        """Begin a new window. Returns the contents of the old one, and the number of the lease
        under which its first point was visited (without points, the present lease)."""
        work, self._work = self._work, _Work()
        self.end_batches()
        batches = work.visited if work.visited.points else self._open
        return batches.lease if batches.points else self._lease, work
