"""The objective that a worker reports with a contribution: the mean loss of its steps, and the loss
at the parameters with which the round began.

The two differ: the mean loss of a round with several local steps does not show how averaging the
workers' models changes the objective.

Evaluates the objective on a fixed sample of points. FSP chooses its interval by these values.

*The objective is the mean loss over the probe sample, which is drawn with the job's seed, or over
every second, fourth or eighth point of the sample if evaluating all points would take long. Each
worker evaluates its share of these points with a forward pass only. The time of this evaluation is
counted separately.*
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_AT_ONCE = 256
NOT_PROBED: tuple[float | None, int, int] = (None, 0, 0)


class Probe:
    """Evaluates this worker's share of the sample. `fetch` returns the batch with the given
    indices. `loss_of` returns the mean loss of a batch."""

    def __init__(
        self,
        points: int,
        sample: int,
        seed: int,
        fetch: Callable[[Any], Any],
        loss_of: Callable[[Any], torch.Tensor],
    ) -> None:
        rng = np.random.default_rng((seed, 3))
        self._sample = rng.choice(points, min(points, sample), replace=False)
        self._fetch = fetch
        self._loss_of = loss_of
        self._result = NOT_PROBED

    def evaluate(self, part: int, parts: int) -> int:
        """Evaluate this worker's share of the sample with the present parameters. Returns the time
        in nanoseconds."""
        began_ns = time.monotonic_ns()
        share = self._sample[part::parts]
        total = 0.0
        with torch.no_grad():
            for indices in np.array_split(share, -(-len(share) // _AT_ONCE) or 1):
                if not len(indices):
                    break
                total += float(self._loss_of(self._fetch(indices))) * len(indices)
        took_ns = time.monotonic_ns() - began_ns
        self._result = (total / len(share) if len(share) else None, len(share), took_ns)
        return took_ns

    def result(self) -> tuple[float | None, int, int]:
        """Return the last evaluation: mean loss, points, nanoseconds. It is returned only once."""
        result, self._result = self._result, NOT_PROBED
        return result


class ObjectiveReport:
    def __init__(self, fetch: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        """`fetch`: for a model on a device, see `Copies.fetch`. Losses are then read after the host
        has waited for the device."""
        self._fetch = fetch
        self.probe: Probe | None = None
        """The sample of points on which the loss at the beginning of a round is measured, if the
        user's code has named one."""
        self._losses: list[tuple[float | torch.Tensor, float]] = []
        """Per step since the last contribution: the user's loss, and the number of its points."""
        self._first: tuple[float | torch.Tensor | None, int, int] = NOT_PROBED
        """The loss of the first local step of this round, which was computed before the step
        changed the model."""

    # -- the steps since the last contribution -------------------------------------------------

    def add(self, loss: torch.Tensor | float, points: float) -> None:
        """Add the loss of a step, which is the mean over this many points."""
        if isinstance(loss, torch.Tensor):
            loss = loss.detach().item() if self._fetch is None else self._fetch(loss)
        self._losses.append((loss, points if points > 0 else 1.0))

    def remove_last(self) -> None:
        """Remove the loss of the last step, because the step does not count."""
        self._losses.pop()

    def clear(self) -> None:
        self._losses.clear()

    def take_mean(self) -> float | None:
        """Return the mean loss over the points of all steps since the last contribution, and begin
        a new mean."""
        losses, self._losses = self._losses, []
        points = sum(count for _, count in losses)
        return sum(float(loss) * count for loss, count in losses) / points if losses else None

    # -- the beginning of a round --------------------------------------------------------------

    def begin_round(self, part: int, parts: int) -> int:
        """Evaluate this worker's part of the probe sample, if there is a sample and the sync policy
        has asked for it (`parts` is not 0). Returns the time in nanoseconds."""
        return self.probe.evaluate(part, parts) if self.probe is not None and parts else 0

    def keep_first(self, points: int) -> None:
        """Keep the loss that was added last: it is the loss of the first local step of the
        round."""
        self._first = (self._losses[-1][0], points, 0)

    def take_first(self, *, asked: bool) -> tuple[float | None, int, int]:
        """Return the objective at the parameters with which this round began: the loss, the number
        of points, and the time in nanoseconds that measuring it took. It is measured on the probe
        sample. Without a sample it is the loss of the first local step, if the sync policy has
        `asked` for it."""
        first, self._first = self._first, NOT_PROBED
        if self.probe is not None:
            return self.probe.result()
        loss, points, took_ns = first if asked else NOT_PROBED
        return None if loss is None else float(loss), points, took_ns
