"""The errors of polyrhythm, in one hierarchy. Each says what happened, to whom, and what to do.

All but `Interrupted` are subclasses of `PolyrhythmError`. Their tracebacks end at the call in
your program; `debug=True`, or the variable `POLYRHYTHM_DEBUG`, keeps the frames inside
polyrhythm. The command line prints the text of an error as one line, and exits with its `status`.

Example:
    >>> try:
    ...     pr.train("digits", workers=0)
    ... except pr.errors.UsageError as error:
    ...     print(error)
    --workers is 0: it must be at least 1
"""

from typing import Any


class PolyrhythmError(Exception):
    """The base class of all errors of polyrhythm.

    Attributes:
        status: the exit status of a command that ends with this error.
    """

    status = 1


class UsageError(PolyrhythmError):
    """An option, an argument or a file cannot be used as given, or a method was called at the
    wrong time. The exit status is 2."""

    status = 2


class RunError(UsageError):
    """There is no such run; or it cannot do what was asked, because it has ended or belongs to
    another user."""

    status = 1


class RunDeleted(RunError):
    """The folder of a running job was deleted or moved.

    Attributes:
        jobs: the running jobs to which such folders belonged.
    """

    def __init__(self, message: str, jobs: list[Any]) -> None:
        super().__init__(message)
        self.jobs = jobs


class CodeMissing(UsageError):
    """A worker has no code for the job that it has joined: neither its own file, nor one
    that the job sends."""

    status = 1


class NeverAttached(PolyrhythmError):
    """The user's `main` has ended without attaching a model, so its worker has trained nothing."""


class DataError(PolyrhythmError):
    """A data set was not found, or its files are damaged."""


class StoreError(PolyrhythmError):
    """A store or a run's folder could not be read or written, or its contents cannot be used. A
    model that does not exist is reported by this error, too."""


class ObjectMissing(StoreError):
    """The store has no object with this name."""


class StoreTaken(StoreError):
    """Another job writes its checkpoints to the same store."""


class StoreFull(StoreError):
    """A store has no room for an object."""


class DamagedCheckpoint(StoreError):
    """A checkpoint is incomplete, or its bytes are not those that were written."""


class FrameError(PolyrhythmError):
    """The received bytes are not a message of polyrhythm, or the message is damaged."""


class LinkError(PolyrhythmError):
    """A process of the job cannot be reached, does not know the secret of the job, or was lost
    while it was needed."""


class LinkEnded(LinkError):
    """The process at the other end of a link is gone, or cannot be reached any more."""


class Refused(PolyrhythmError):
    """The job refuses this worker or server, for a reason that the message names: for example,
    its model differs from that of the other workers, or its name is taken.

    Attributes:
        code: the code of the reason, such as `name-taken`; empty if it is not known.
    """

    def __init__(self, message: str = "", code: str = "") -> None:
        super().__init__(message)
        self.code = code


class ToldToLeave(PolyrhythmError):
    """A worker was told to leave before its training loop had begun. It ends `main`, and is not a
    failure."""


class JobFailed(PolyrhythmError):
    """The job ended before its goal.

    Attributes:
        result: the `polyrhythm.Result` so far, if `train`, `serve` or `simulate` of this process
            ran the job; None in a worker, and if the job did not start.
    """

    def __init__(self, message: str = "", result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class LeadLost(JobFailed):
    """The lead of the job has sent nothing for `lead_timeout` seconds, so this process has ended
    by itself."""


class Interrupted(KeyboardInterrupt):
    """A second Ctrl-C or SIGTERM has ended a job at once. It is a `KeyboardInterrupt` and not a
    `PolyrhythmError`, so `except Exception` does not catch it.

    Attributes:
        result: the `polyrhythm.Result` of the job so far.
    """

    def __init__(self, result: Any) -> None:
        super().__init__("the job was ended at once")
        self.result = result


class NotFinite(PolyrhythmError):
    """A contribution has NaN or infinity in it, and `on_nan` of the job is `refuse`. Nothing of
    it was sent.

    Attributes:
        what: what is not finite: `gradient`, `parameter` or `buffer`.
        tensor: the name of the tensor in the model.
        step: the number of the worker's step, counted from 1; 0 if it is not known.
    """

    def __init__(self, message: str, *, what: str = "", tensor: str = "") -> None:
        super().__init__(message)
        self.what = what
        self.tensor = tensor
        self.step = 0
        """The number of the worker's step, counted from 1; 0 if it is not known."""

    def at(self, worker: str, step: int) -> "NotFinite":
        """The same error, with the name of the worker and the number of its step in the text."""
        error = NotFinite(f"{worker}, step {step}: {self}", what=self.what, tensor=self.tensor)
        error.step = step
        return error


class ModelChanged(UsageError):
    """The model or the optimizer was changed after `attach` in a way that the servers cannot
    learn of. For example, a layer was replaced, or the momentum was changed."""

    status = 1

    def at(self, worker: str, step: int) -> "ModelChanged":
        """The same error, with the name of the worker and the number of its step in the text."""
        return ModelChanged(f"{worker}, step {step}: {self}")


class OutOfMemory(PolyrhythmError):
    """The device of a worker has no memory left for what `main` does."""


class InvariantBroken(PolyrhythmError):
    """A check inside polyrhythm failed: a defect of polyrhythm, and not of your program."""
