"""Steps that a worker leaves out. Either the step is not finite (`--on-nan skip`), or the user's code
has taken points and made no step with them.

*A step whose gradient is not finite changes nothing: a local optimizer does not take it, and it
adds nothing to the gradients of a contribution. A contribution without any other step is left out:
the worker abstains from the round.* The points of steps that are left out count as visited.
"""

from polyrhythm.errors import ModelChanged, NotFinite
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.wire.messages.reasons import Reason, no_step, not_finite

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
