"""The first two frames of a link: who is there, and which digest all later frames have.

Both are sent with xxh3. The opener offers digests in its order of preference; the one who was
called chooses, and answers with a greeting or a refusal.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from polyrhythm.errors import FrameError, LinkError, Refused
from polyrhythm.io.link import Link
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import MEMBER, Limits


def offers(digest: str, kind: str) -> tuple[int, ...]:
    """What an opener offers: what was asked for, else nothing on a local link and xxh3 on others."""
    if digest != "auto":
        return (int(Digest.named(digest)),)
    preferred = Digest.NONE if kind in ("local", "memory") else Digest.XXH3
    return (preferred, *(other for other in Digest if other is not preferred))


def limits_for(slice_nbytes: int) -> Limits:
    return Limits(MEMBER.head_nbytes, max(slice_nbytes, 64 * 1024))


@contextmanager
def patience(link: Link, seconds: float = 10.0) -> Iterator[None]:
    """Whoever does not answer in time is not there."""
    timer = threading.Timer(seconds, link.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def introduce(link: Link, bonjour: m.WorkerBonjour | m.ServerBonjour) -> m.Greeting:
    """Say bonjour and take the answer; the link is agreed on when this returns."""
    link.send(bonjour)
    answer, _ = link.receive()
    if isinstance(answer, m.Refusal):
        raise Refused(answer.reason)
    if not isinstance(answer, m.Greeting):
        raise LinkError(f"{link.peer} did not greet: it sent {type(answer).__name__}")
    if answer.digest not in bonjour.digests:
        raise LinkError(f"{link.peer} chose digest {answer.digest}, which was not offered")
    link.agree(Digest(answer.digest), MEMBER)
    return answer


def await_bonjour(link: Link, job: str) -> m.WorkerBonjour | m.ServerBonjour:
    """The stranger's first frame, or a LinkError that says what was wrong with it."""
    message, _ = link.receive()
    if not isinstance(message, m.WorkerBonjour | m.ServerBonjour):
        raise FrameError(
            f"the first frame of a link must be a bonjour, not {type(message).__name__}"
        )
    if message.protocol != m.PROTOCOL:
        raise FrameError(
            f"{message.name} speaks protocol {message.protocol}, this job speaks {m.PROTOCOL};"
            " install the same version of polyrhythm on both sides"
        )
    if message.job and message.job != job:
        raise FrameError(f"{message.name} was refused: it belongs to another job")
    return message


def greet(
    link: Link,
    bonjour: m.WorkerBonjour | m.ServerBonjour,
    name: str,
    address: m.Address,
    digest: str,
    job: m.JobSpec,
) -> None:
    known = [offer for offer in bonjour.digests if offer in Digest.__members__.values()]
    if digest != "auto":
        known = [offer for offer in known if offer == Digest.named(digest)]
    if not known:
        raise FrameError(f"{bonjour.name} offers no digest that {name} accepts ({digest})")
    greeting = m.Greeting(
        name=name,
        digest=known[0],
        address=address,
        heartbeat_s=job.heartbeat_s,
        lead_timeout_s=job.lead_timeout_s,
    )
    link.send(greeting)
    link.agree(Digest(known[0]), limits_for(job.slice_nbytes))
