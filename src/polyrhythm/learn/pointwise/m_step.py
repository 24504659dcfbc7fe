"""The parameters of a point-wise algorithm on a worker, and the M-step on every version.

*Every worker computes the new parameters from the same sum of rows and its old parameters. The
evaluator also sends its parameters with its next contribution, and the servers publish them with
the next version. Before its next M-step, a worker uses the servers' parameters if its parameters
are older, or differ from them for the same version.* So workers cannot drift apart, and a worker
that joins gets the parameters of the others.

*After a resume, the M-step waits until every point is in the sum: otherwise it would replace the
parameters of the checkpoint by parameters of the first points.*
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from polyrhythm.learn.pointwise.algorithm import Algorithm, Check
from polyrhythm.learn.pointwise.chunks import COUNTS
from polyrhythm.learn.pointwise.layout import Array, ArrayLayout, Arrays
from polyrhythm.wire.messages import ModelSpec, OptimizerSpec, StateName, TensorSpec

_STATISTICS = "statistics"
_STATE = "state of the parameters"
_RESUMED, _VERSION, _BEGUN, _FINAL = range(4)
"""The meaning of the numbers in the state of the parameters: the checkpoint from which the job has
resumed, the version to which they belong, whether an M-step has been made since then, and whether
they are final."""
_NO_VERSION = -1
_Checked = tuple[Arrays, float | None, float | None]
CONVERGED, HALTED = "converged", "halted"


class MStep:
    def __init__(
        self,
        algorithm: Algorithm,
        first: Arrays,
        points: int,
        resumed: int,
        *,
        rounds: bool = True,
        expected: Arrays | None = None,
    ) -> None:
        """`first`: the first parameters. `points`: how many points the source has. `resumed`: the
        number of the checkpoint from which the job has resumed; 0 if it has not resumed. `rounds`:
        whether all workers read the same versions. `expected`: an estimate of the statistics of all
        points at the first parameters. In the first pass it represents the points that were not
        visited yet; None: nothing does."""
        self._rounds = rounds
        self._algorithm = algorithm
        self._points = points
        self._resumed = resumed
        self._layout = ArrayLayout.of(first)
        self._statistics = algorithm.layout(first)
        self._expected = None if expected is None else self._statistics.flat(expected)
        own = self._layout.flat(first, what="the first parameters")
        self.parameter = self._layout.views(own)
        """The parameters with which points are visited."""
        self._own = own
        self._version = _NO_VERSION
        self._sent = _NO_VERSION
        """The version of the parameters that this worker has sent last."""
        self._begun = self._final = False
        self.objective: float | None = None
        """The objective per point at the last M-step; None while some points are not in the sum."""
        self.total_objective: float | None = None
        self.terminated = ""
        """Why the parameters are final; empty: they are not."""
        self.corrected = 0
        """How often this worker's parameters differed from those of the other workers."""
        self._highest = 0
        """The largest number of generations of visits (`chunks.py`) that a sum contained of every
        point."""
        self._due = 1
        """The number of generations that the sum must contain before the end is checked again."""
        self._checked: _Checked = (self.parameter, None, None)
        """The last check of the end: the parameters, and the objective after and before the M-step."""
        sizes = COUNTS + self._statistics.size
        self.tensors = [
            torch.zeros(sizes, dtype=torch.float64),
            *(torch.from_numpy(array.copy()) for array in self.parameter.values()),
            torch.tensor([resumed, _NO_VERSION, 0, 0], dtype=torch.int64),
        ]

    @property
    def final(self) -> bool:
        """Whether the algorithm has ended: this worker, or the worker that sends the parameters for
        all, has found the parameters to be final."""
        return self._final or self.terminated != ""

    @property
    def unsent(self) -> bool:
        """Whether this worker has computed parameters that it has not sent."""
        return self._version > self._sent

    @property
    def generation(self) -> int:
        """The generation of the points that are now visited. It never falls, although the sum lacks
        the points of a dead worker and points that move."""
        return self._highest + 1

    @property
    def row_size(self) -> int:
        return self._statistics.size

    @property
    def spec(self) -> ModelSpec:
        """The description of the statistics and the parameters. Only the parameters are part of the
        saved model."""
        names = [_STATISTICS, *self.parameter, _STATE]
        dtypes = {torch.float64: "float64", torch.int64: "int64"}
        tensors = tuple(
            TensorSpec(
                name,
                tuple(tensor.shape),
                dtypes[tensor.dtype],
                0 if name == _STATISTICS else -1,
                tuple(tensor.stride()),
            )
            for name, tensor in zip(names, self.tensors, strict=True)
        )
        saved = tuple(StateName(name, 1 + index) for index, name in enumerate(self.parameter))
        return ModelSpec(tensors, OptimizerSpec(_STATISTICS, ({},)), saved)

    def values(self, difference: Array, *, sends: bool) -> Mapping[int, torch.Tensor]:
        """The arrays of a contribution, by the numbers of the tensors. `sends`: this worker sends
        the parameters for all workers."""
        found = {0: torch.from_numpy(difference)}
        if sends:
            self._sent = self._version
            for index, array in enumerate(self.parameter.values()):
                found[1 + index] = torch.from_numpy(array)
            state = (self._resumed, self._version, self._begun, self.terminated != "")
            found[len(self.tensors) - 1] = torch.tensor([int(number) for number in state])
        return found

    def on_version(
        self,
        version: int,
        *,
        joined: bool,
        final: bool,
        torn: bool = False,
        whole_only: bool = False,
    ) -> None:
        """Use the servers' parameters if they are newer than this worker's, and make the M-step on
        the new version. `joined`: the worker has just joined. `final`: the job has ended. `torn`:
        some numbers of the sum may lack a contribution that others contain, so there is no M-step.
        `whole_only`: no M-step if the sum lacks points."""
        row = self.tensors[0].numpy()
        self._take(version, joined=joined)
        counted = float(row[0])
        generations = int(row[2] // max(self._points, counted))
        self._highest = max(self._highest, generations)
        if joined:
            self._check_later(row)
            self._checked = (self.parameter, None, None)
        if self._final or (final and self._rounds):
            return  # no M-step: the servers have the parameters of the last M-step
        resumes = self._resumed > 0 and not self._begun and counted < self._points
        whole = counted >= self._points
        held = whole_only and not whole
        keeps = resumes or torn or held
        if counted < 1 or keeps:
            self._version = version
            # the objective of the last M-step belongs to an earlier version
            self.objective = None if held else self.objective
            return
        total = row[COUNTS:].copy()
        if self._expected is not None and row[2] < self._points and not whole_only:
            total += (1.0 - counted / self._points) * self._expected
        statistics = self._statistics.views(total)
        due = whole and generations >= self._due
        before = self._algorithm.objective(statistics, self.parameter) if due else None
        new = self._algorithm.update_parameter(statistics, self.parameter)
        if whole:
            new = self._algorithm.repair(statistics, new)
        self._own = self._layout.flat(new, what="the parameters")
        self.parameter = self._layout.views(self._own)
        self._version, self._begun = version, True
        objective = self._algorithm.objective(statistics, self.parameter)
        if objective is not None:
            self.total_objective = float(objective)
            # an objective is comparable only if it is a sum over all points
            self.objective = self.total_objective / counted if whole else None
        if row[1] >= self._points:
            self.terminated = HALTED
        elif due:
            self._check(generations, before)
            self._check_later(row)

    def _take(self, version: int, *, joined: bool) -> None:
        """Use the servers' parameters, unless this worker's are newer."""
        state = self.tensors[-1].numpy()
        ours = int(state[_RESUMED]) == self._resumed
        theirs = int(state[_VERSION]) if ours else _NO_VERSION
        if not joined and (theirs < self._version or not self._rounds):
            return
        flat = self._layout.flat(self._published(), what="the parameters of the servers")
        if not joined and theirs == self._version and not np.array_equal(flat, self._own):
            self.corrected += 1
        self._own, self.parameter = flat, self._layout.views(flat)
        self._version = theirs
        self._begun = ours and bool(state[_BEGUN])
        self._final = ours and bool(state[_FINAL])

    def _published(self) -> dict[str, npt.NDArray[np.float64]]:
        tensors = zip(self.parameter, self.tensors[1:-1], strict=True)
        return {name: tensor.numpy() for name, tensor in tensors}

    def _check(self, passes: int, before: float | None) -> None:
        """Ask the algorithm whether the parameters are final. *It is asked about once per pass, whatever
        the length of a round (FSP's section 5.3): when every point was visited since the last
        check.*"""
        old, last, last_before = self._checked
        check = Check(passes, old, self.parameter, self.total_objective, last, before, last_before)
        if self._algorithm.terminated(check):
            self.terminated = CONVERGED
        self._checked = (self.parameter, self.total_objective, before)

    def _check_later(self, row: Array) -> None:
        """Check the end again when every point was visited after this sum was made. If the sum
        already contains visits of the current generation, that is certain only at the end of the
        next generation."""
        between = row[2] == self._highest * max(self._points, float(row[0]))
        self._due = self._highest + (1 if self._rounds and between else 2)
