"""Every error a user can meet, in one hierarchy. Each says what happened, to whom, and what to do."""

from typing import Any


class PolyrhythmError(Exception):
    """The root: the command line prints its text as one line and exits with `status`."""

    status = 1


class UsageError(PolyrhythmError):
    """The command, the file or the flags cannot work as given."""

    status = 2


class RunError(UsageError):
    """There is no such run, or the run cannot be asked for this, because it has ended or belongs to
    another user."""

    status = 1


class RunDeleted(RunError):
    """The folder of a running run was deleted or moved. `jobs`: the running jobs to which such folders
    belonged."""

    def __init__(self, message: str, jobs: list[Any]) -> None:
        super().__init__(message)
        self.jobs = jobs


class CodeMissing(UsageError):
    """A worker has no code to run for the job that it has joined."""

    status = 1


class DataError(PolyrhythmError):
    """A data set was not found, or its files are damaged."""


class StoreError(PolyrhythmError):
    """A store could not be read or written, or what it holds cannot be used."""


class ObjectMissing(StoreError):
    """The store has no object of this name."""


class StoreTaken(StoreError):
    """Another job writes its checkpoints to the same store."""


class StoreFull(StoreError):
    """A store has no room for an object."""


class DamagedCheckpoint(StoreError):
    """A checkpoint is incomplete, or its bytes are not those that were written."""


class FrameError(PolyrhythmError):
    """The received bytes are not a frame of polyrhythm, or the frame is damaged."""


class LinkError(PolyrhythmError):
    """A link could not be made, or ended while it was needed."""


class LinkEnded(LinkError):
    """The peer is gone, or cannot be reached any more."""


class Refused(PolyrhythmError):
    """The lead or a server has refused this process, for a reason that the error names. `code`: the
    code of the reason, if it is known."""

    def __init__(self, message: str = "", code: str = "") -> None:
        super().__init__(message)
        self.code = code


class ToldToLeave(PolyrhythmError):
    """A worker was told to leave before its loop had begun."""


class JobFailed(PolyrhythmError):
    """The job ended before its goal. `result`: the result of the job, if `polyrhythm.train` ran it;
    None if the job did not start."""

    def __init__(self, message: str = "", result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class LeadLost(JobFailed):
    """The lead has sent nothing for too long, so this process ended by itself."""


class Interrupted(KeyboardInterrupt):
    """A second Ctrl-C or SIGTERM ended a job at once. `result`: the result of the job."""

    def __init__(self, result: Any) -> None:
        super().__init__("the job was ended at once")
        self.result = result


class NotFinite(PolyrhythmError):
    """A contribution holds NaN or infinity; nothing of it was sent. `what`: gradient, parameter or
    buffer. `tensor`: its name."""

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
    """The user's code has changed the model or the optimizer, after they were attached, in a way
    that the servers cannot learn of."""

    status = 1

    def at(self, worker: str, step: int) -> "ModelChanged":
        """The same error, with the name of the worker and the number of its step in the text."""
        return ModelChanged(f"{worker}, step {step}: {self}")


class OutOfMemory(PolyrhythmError):
    """The device of a worker has no memory left for what the user's code does."""


class InvariantBroken(PolyrhythmError):
    """A machine's own check() failed: a defect of this project."""
