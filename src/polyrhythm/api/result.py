"""The result of a job, for Python programs: the trained model, the metrics and their history."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrhythm.core.lead.progress.progress import STOPPED
from polyrhythm.core.model import choose, file_of, models_of
from polyrhythm.errors import StoreError
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
    """The result of a run: of `train`, of `simulate`, or one of the list that `runs` returns."""

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
        """`ended`, `stopped` or `failed`; of a run in a list also `running`, `ended without a word`
        (its processes were killed), or `unknown` (it runs on another host)."""
        if self._status is not None:
            return self._status
        return "failed" if self.failed else "stopped" if self.stopped else "ended"

    @property
    def stopped(self) -> bool:
        """Whether the job was stopped on request (Ctrl-C, SIGTERM or `polyrhythm stop`) before it
        reached its goal."""
        ended = self._state.ended
        return bool(self.signal) or (ended is not None and ended.reason.code == STOPPED.code)

    @property
    def failed(self) -> str | None:
        """Why the job failed; None if it did not fail."""
        failed = self.summary.get("failed")
        return None if failed is None else str(failed)

    @property
    def worker_failures(self) -> dict[str, str]:
        """Per worker that failed and was not started again: why it failed."""
        return dict(self.summary.get("worker_failures") or {})

    @property
    def unrecorded(self) -> list[str]:
        """What the folder of the run lacks because it could not be written, for example because the
        disk was full: a line each."""
        return list(self.summary.get("unrecorded") or ())

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of the objective and of each value that workers reported or evaluated. If
        several workers reported a metric, its value is the mean of the last report of each
        worker."""
        return last_metrics(self._state)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Rows of the objective and of reported values over time, oldest first: one per full pass,
        at least one per second, and one per report or evaluation. Each has `at_s`, `what`, `round`,
        `passes` and `points`. `pandas.DataFrame(result.history)` is a table of them."""
        journal = self.run / JOURNAL
        if not journal.is_file():
            raise StoreError(f"the journal of run {self.run.name} is gone: {journal}")
        return history_of(read_journal(journal))

    def state_dict(self, model: str | None = None, *, best: bool = False) -> dict[str, "Tensor"]:
        """The parameters and buffers of the trained model, for `model.load_state_dict`. `model`:
        its name, if the job has several models. `best`: return the best model instead, which a job
        with `keep_best` keeps."""
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
        """The summary that `polyrhythm train --verbose` prints: all workers, how they spent their
        time, and the lines of Python that load the model."""
        return self.text(details=True)

    def text(self, *, details: bool = False, failing: bool = False) -> str:
        """The summary. `failing`: do not say why the job failed, because an error says it."""
        return summary_text(
            self.summary,
            self._given,
            advise(self._state, self._job),
            recorded=(self.run / JOURNAL).is_file(),
            details=details,
            failing=failing,
            said=self._said,
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
    """The results of all runs in this folder, oldest first. A run that has not ended has its result
    so far."""
    return [result_of_run(load_run(path)) for path in run_dirs(Path(runs_dir).expanduser())]
