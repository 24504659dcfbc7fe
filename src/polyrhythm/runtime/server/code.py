"""The lead's process sends the file with the job's code to a worker that asks for it."""

from pathlib import Path

from polyrhythm.errors import UsageError
from polyrhythm.io.codefile import read_code
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import Reason


def code_answer(job: m.JobSpec) -> m.OperatorAnswer:
    """The answer with the job's file, or why it is not sent."""
    try:
        source = read_code(Path(job.path), job.code_digest)
    except UsageError as error:
        refused = Reason("code-refused", {"detail": str(error)})
        return m.OperatorAnswer(reason=refused, done=True, failed=True)
    return m.OperatorAnswer(reason=Reason("code-sent"), done=True, source=source)
