"""Evaluates the objective on a fixed sample of points. FSP chooses its interval by these values.

*The objective is the mean loss over the probe sample, which is drawn with the job's seed. If
evaluating all points would take long, it is the mean over every second, fourth or eighth point.
Each worker evaluates its share of these points with a forward pass only. The time of this
evaluation is counted separately.*
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
