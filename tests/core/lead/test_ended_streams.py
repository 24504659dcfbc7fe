"""A job whose workers leave because their streams have ended does not fail."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core.machine import Effect
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import DONE, STREAM_ENDED, Reason, failed
from tests.core.stage import Stage, of

FAILED = failed("ValueError")


def leave(stage: Stage, worker: int, reason: Reason) -> list[Effect]:
    return stage.tell(m.Leave(**stage.who(worker), reason=reason, failed=reason == FAILED))


@pytest.mark.parametrize("sync", ["bsp", "asp"])
@pytest.mark.parametrize(
    ("first", "last", "ended"),
    [
        (STREAM_ENDED, STREAM_ENDED, "streams-ended"),
        (FAILED, STREAM_ENDED, "streams-ended"),
        (STREAM_ENDED, FAILED, "deserted"),
        (STREAM_ENDED, DONE, "deserted"),
    ],
)
def test_the_last_worker_decides_how_the_job_ends(
    sync: str, first: Reason, last: Reason, ended: str
) -> None:
    stage = Stage(workers=2, sync=sync).begin()
    assert not of(leave(stage, 0, first), fx.End), "the other worker goes on"
    (end,) = of(leave(stage, 1, last), fx.End)
    assert end.reason.code == ended and end.failed == (ended == "deserted")
