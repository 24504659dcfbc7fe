"""Why something happened: a code, and the names and numbers that belong to it.

Machines decide by the codes; messages and the journal carry codes too. Only `observe/reasons.py`
turns them into sentences. *Text appears in a reason only as `detail`: the words of an exception, of
the operating system or of a user's program. `detail` is shown to users, and no code interprets it.*
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from polyrhythm.wire.messages.fields import Count, Number

_MOST_FIELDS = 32
Field: TypeAlias = bool | Count | Number | str | list[Count] | None
"""The value of a field. A list contains the numbers of workers or of servers."""
Fields: TypeAlias = Annotated[Mapping[str, Field], Meta(max_length=_MOST_FIELDS)]


class Reason(msgspec.Struct, frozen=True, array_like=True):
    code: str
    fields: Fields = {}

    def because(self, cause: "Reason") -> "Reason":
        """This reason, extended by the fields of its cause; the field `cause` contains the cause's
        code."""
        return Reason(self.code, {**cause.fields, **self.fields, "cause": cause.code})

    def noted(self) -> dict[str, Any]:
        """The reason as the two fields `reason` and `fields` of a journal line."""
        return {"reason": self.code, "fields": self.fields}


DONE = Reason("done")
"""A worker left because its program was done."""
STREAM_ENDED = Reason("stream-ended")
"""A worker left because its stream of points has ended."""
NEVER_ATTACHED = Reason("never-attached")
"""A worker left because its program was done, and had not attached a model."""
TOLD_TO_LEAVE = Reason("told-to-leave")


NO_CODE = Reason("no-code")
"""A worker left because it has no code for this job. The command that started the worker was wrong;
the job has not failed."""


FAILED = "failed"
"""The code of a reason why a worker leaves the job: its program failed."""


def failed(detail: object) -> Reason:
    """A worker left because its program failed."""
    return Reason(FAILED, {"detail": str(detail)})


NOT_FINITE = "not-finite"
"""The code of a reason why a worker leaves the job, or leaves a contribution out: the contribution
is not finite."""


def not_finite(what: str, tensor: str, step: int, detail: str) -> Reason:
    """A contribution holds NaN or infinity. `what`: gradient, parameter or buffer."""
    fields: dict[str, Field] = {"holds": what, "tensor": tensor, "step": step, "detail": detail}
    return Reason(NOT_FINITE, fields)


HUNG = "hung"
"""The code of a reason why a worker is removed from the job: its training loop did not end when the
job ended."""


UNATTACHED = "unattached"
"""The code of a reason why a worker is removed from the job: it had not attached a model when the
time for that was over."""


NO_STEP = "no-step"
"""The code of a reason why a worker leaves a contribution out: the user's code has made no step."""


def no_step(step: int, detail: str) -> Reason:
    """The training loop has made no step with the points of a contribution."""
    return Reason(NO_STEP, {"step": step, "detail": detail})


def refused(detail: str) -> Reason:
    """A process was refused; `detail` is the message of the check that it did not pass."""
    return Reason("refused", {"detail": detail})
