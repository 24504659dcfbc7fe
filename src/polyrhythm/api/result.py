"""The result of a job, for Python programs: the trained model, the metrics and their history."""

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrhythm.core.lead.progress.progress import STOPPED
from polyrhythm.core.model import MODEL, choose, file_of, models_of, named
from polyrhythm.errors import StoreError, UsageError
from polyrhythm.observe.advice import advise
from polyrhythm.observe.journal import read_journal
from polyrhythm.observe.runs import JOURNAL, Run, load_run, run_dirs
from polyrhythm.observe.state import RunState, history_of, last_metrics
from polyrhythm.observe.summary import described, summary_text
from polyrhythm.observe.summary import result as summary_of_state
from polyrhythm.wire.messages import JobSpec

if TYPE_CHECKING:
    from torch import Tensor


class Result:
    """The result of a run: of `train`, `simulate` and `Service.wait`, or one of the list that
    `runs` returns.

    `str(result)` is the summary that `polyrhythm train` prints.

    Example:
        >>> result = pr.train(main, name="mine", workers=2, servers=1, epochs=2)
        >>> model.load_state_dict(result.state_dict())
        <All keys matched successfully>
        >>> sorted(result.metrics)
        ['accuracy', 'objective']
    """

    def __init__(
        self,
        run: Path,
        summary: dict[str, Any],
        state: RunState,
        job: JobSpec,
        signal: int = 0,
        status: str | None = None,
        said: Collection[str] = (),
    ) -> None:
        self.run: Path = run.absolute()
        """The folder of the run, as an absolute path. Its name, `result.run.name`, is the name of
        the run."""
        self._given = run
        self.summary: dict[str, Any] = summary
        """The object that `polyrhythm train --json` prints."""
        self.signal: int = signal
        """The number of the signal that stopped the job, such as 2 for Ctrl-C; 0 if no signal
        stopped it."""
        self._status = status
        self._said = said
        """The workers whose errors the user has seen while the job ran."""
        self._state = state
        self._job = job

    @property
    def status(self) -> str:
        """How the run has ended: `ended` (it reached its goal), `stopped` or `failed`.

        Of a run in the list of `runs` also `running`, `ended without a word` (its processes were
        killed), or `unknown` (it runs on another host).

        Example:
            >>> result.status
            'ended'
        """
        if self._status is not None:
            return self._status
        return "failed" if self.failed else "stopped" if self.stopped else "ended"

    @property
    def stopped(self) -> bool:
        """Whether the job was stopped on request (Ctrl-C, SIGTERM, `Service.stop` or `polyrhythm
        stop`) before it reached its goal.

        Example:
            >>> result.stopped
            False
        """
        ended = self._state.ended
        return bool(self.signal) or (ended is not None and ended.reason.code == STOPPED.code)

    @property
    def failed(self) -> str | None:
        """Why the job failed; None if it did not fail.

        Example:
            >>> result.failed is None
            True
        """
        failed = self.summary.get("failed")
        return None if failed is None else str(failed)

    @property
    def worker_failures(self) -> dict[str, str]:
        """Why workers failed, by their names. It has the workers that failed while the others
        went on, and were not started again.

        Example:
            >>> result.worker_failures
            {}
        """
        return dict(self.summary.get("worker_failures") or {})

    @property
    def unrecorded(self) -> list[str]:
        """What the folder of the run lacks because it could not be written, for example because
        the disk was full: one text each.

        Example:
            >>> result.unrecorded
            []
        """
        return list(self.summary.get("unrecorded") or ())

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of the objective, and of each value that workers reported or evaluated.

        If several workers reported a metric, its value is the mean of the last report of each
        worker.

        Example:
            >>> 0 <= result.metrics["accuracy"] <= 1
            True
        """
        return last_metrics(self._state)

    @property
    def history(self) -> list[dict[str, Any]]:
        """The objective and the reported values over time, as a list of rows, oldest first. Draw
        curves from it: `pandas.DataFrame(result.history)` is a table of it.

        There is a row for every full pass over the data, at least one per second, and one for
        every report and evaluation. Each row is a dict. Its column `what` is `pass`, `rounds` or
        `report`, and `at_s` is the time in seconds since the run began. `round`, `passes` and
        `points` say how far the job was. Rows of passes and rounds have `objective`, the mean
        loss since the row before it; rows of reports have `worker` and the values.

        Raises:
            StoreError: the journal of the run was deleted.

        Example:
            >>> for row in result.history:
            ...     if row["what"] == "pass":
            ...         print(row["passes"], row["points"])
            1 256
            2 512
        """
        journal = self.run / JOURNAL
        if not journal.is_file():
            raise StoreError(f"the journal of run {self.run.name} is gone: {journal}")
        return history_of(read_journal(journal))

    def state_dict(self, model: str | None = None, *, best: bool = False) -> dict[str, "Tensor"]:
        """Return the parameters and buffers of the trained model, for `model.load_state_dict`.

        Args:
            model: the name of the model, if the job has several.
            best: return the best model instead of the last one. The job must have kept it
                (`keep_best` of `polyrhythm.train`).

        Returns:
            The tensors by their names, on the CPU.

        Raises:
            StoreError: the run has no such model, for example because it has not ended, or was
                simulated.

        Example:
            >>> sorted(result.state_dict())
            ['bias', 'weight']
        """
        if self.summary.get("model_in_store") and not best:
            return self._from_store(model)
        there = [each.name for each in self.run.iterdir()] if self.run.is_dir() else []
        path = self.run / choose(model, there, best=best)
        if not path.is_file():
            reason = (
                self.summary.get("not_saved")
                or self.summary.get("ended")
                or "the run has not ended"
            )
            raise StoreError(f"run {self.run.name} has no {path.name}: {reason}")
        from safetensors.torch import load_file  # this imports torch, which takes seconds

        return load_file(path)

    def to_ray_checkpoint(self) -> Any:
        """Return the trained model as a `ray.tune.Checkpoint`, for `ray.tune.report` and for
        other libraries of Ray.

        The checkpoint is the folder `ray-checkpoint` in the folder of the run. It contains copies
        of the files of the model, such as `model.safetensors`, and `summary.json`, which is
        `Result.summary`. A job with several models has a file for each.

        Returns:
            The checkpoint, a `ray.tune.Checkpoint`.

        Raises:
            StoreError: the run has no model, for example because it has not ended.
            UsageError: Ray is not installed.

        Example:
            >>> checkpoint = result.to_ray_checkpoint()
            >>> sorted(path.name for path in (result.run / "ray-checkpoint").iterdir())
            ['model.safetensors', 'summary.json']
        """
        try:
            from ray.tune import Checkpoint
        except ImportError:
            raise UsageError(
                "to_ray_checkpoint needs Ray, which is not installed: run"
                " pip install 'polyrhythm[ray]' 'ray[tune]'"
            ) from None
        there = [each.name for each in self.run.iterdir()] if self.run.is_dir() else []
        files = [name for name in there if name == MODEL or named(name) is not None]
        # without a file here, the model is in the store, or `state_dict` says why there is none
        state = None if files else self.state_dict()
        folder = self.run / "ray-checkpoint"
        folder.mkdir(exist_ok=True)
        for name in files:
            shutil.copyfile(self.run / name, folder / name)
        if state is not None:
            from safetensors.torch import save_file

            save_file(state, folder / MODEL)
        (folder / "summary.json").write_text(json.dumps(self.summary))
        return Checkpoint.from_directory(str(folder))

    def _from_store(self, model: str | None) -> "dict[str, Tensor]":
        """The model of a job that could not write it to the folder of the run."""
        from safetensors.torch import load

        from polyrhythm.store.objects import open_store

        files = self.summary["model"].rpartition("/")[2]
        there = [file_of(name) for name in models_of(files)] or [files]
        return load(bytes(open_store(self._job.store).get(choose(model, there))))

    def __str__(self) -> str:
        """The summary that `polyrhythm train` prints."""
        return self.text()

    @property
    def details(self) -> str:
        """The longer summary that `polyrhythm train --verbose` prints: all workers, how they
        spent their time, and the lines of Python that load the model.

        Example:
            >>> "contributions" in result.details
            True
        """
        return self.text(details=True)

    def text(self, *, details: bool = False, failing: bool = False, columns: int = 80) -> str:
        """Return the summary as a text.

        Args:
            details: return the longer summary, as `details` does.
            failing: leave out why the job failed, because an error says it already.
            columns: the width of the table of workers.

        Example:
            >>> result.text() == str(result)
            True
        """
        return summary_text(
            self.summary,
            self._given,
            advise(self._state, self._job),
            recorded=(self.run / JOURNAL).is_file(),
            details=details,
            failing=failing,
            said=self._said,
            columns=columns,
        )

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value:.4g}" for name, value in self.metrics.items())
        return f"<Result of run {self.run.name}: {values or 'no metrics'}>"


def result_of_run(run: Run) -> Result:
    """The result of a recorded run, or the result so far of a run that has not ended."""
    job = run.job or JobSpec(job="")
    summary = run.result or {
        **described(job),
        **summary_of_state(run.state, job),
        "failed": run.reason if run.word == "failed" else None,
        "worker_failures": run.failures,
    }
    return Result(run.path, summary, run.state, job, status=run.word)


def runs(runs_dir: Path | str = "runs") -> list[Result]:
    """Return the results of all runs in a folder, oldest first.

    A run that has not ended has the status `running` and its result so far.

    Args:
        runs_dir: the folder in which every run has its own folder.

    Returns:
        The results. The list is empty if there is no such folder.

    Example:
        >>> for run in pr.runs():
        ...     print(run.run.name, run.status)
        mine ended
    """
    return [result_of_run(load_run(path)) for path in run_dirs(Path(runs_dir).expanduser())]
