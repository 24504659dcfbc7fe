"""Whether the end of a process counts as a failure although the job has ended."""

import signal
import socket

import pytest

from polyrhythm.engines.processes import Child
from polyrhythm.engines.requests import ChildRequest
from polyrhythm.wire.messages import JobSpec

REQUEST = ChildRequest(role="worker", number=0, name="worker-0", job=JobSpec(job="j", name="n"))


@pytest.mark.parametrize(
    ("status", "signalled", "killed"),
    [
        (-signal.SIGKILL, False, True),
        (-signal.SIGSEGV, False, True),
        (-signal.SIGTERM, True, False),
        (-signal.SIGKILL, True, False),
        (1, False, False),
        (0, False, False),
        (None, False, False),
    ],
)
def test_a_process_was_killed_if_the_engine_sent_no_signal(
    status: int | None, signalled: bool, killed: bool
) -> None:
    with socket.socket() as control:
        child = Child(REQUEST, 1, control, status=status, signalled=signalled)
        assert child.was_killed == killed
