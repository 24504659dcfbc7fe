"""The operator's end of its link to the lead: it performs the handshake, makes one request, and
reads the answers. Where the lead listens is a `JobAddress`, which workers and servers that join from
outside get too."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from polyrhythm.core.names import LEAD
from polyrhythm.core.values import plain_reason
from polyrhythm.errors import LinkEnded, LinkError, Refused
from polyrhythm.io.link import Link
from polyrhythm.io.tcp import dial_tcp, no_process_listens
from polyrhythm.observe.reasons import in_words
from polyrhythm.runtime.net.handshake import introduce, offers, patience
from polyrhythm.wire import messages as m
from polyrhythm.wire.proof import Secret

_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class JobAddress:
    """Where the lead of a job listens, and the secret that it asks for."""

    host: str
    port: int
    secret: Secret
    job: str = ""
    """The job's id; empty if it is not known. A request that contains the id cannot reach another job
    that now uses the port."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def ask_lead(
    at: JobAddress, name: str, request: m.OperatorRequest, *, answer_s: float = _ANSWER_S
) -> Iterator[m.OperatorAnswer]:
    """Make a request to the lead, and yield its answers. The last answer has `done` set. Raises
    LinkError if the lead cannot be reached or the link ends before the last answer, and Refused if
    the lead refuses the request. `name`: of the process that asks. `answer_s`: how long the handshake
    may take."""
    link = dial_tcp(at.host, at.port, LEAD)
    try:
        hello = m.OperatorHello(name=name, job=at.job, digests=offers("auto", link.kind))
        with _answered(link, answer_s):
            reply = introduce(link, hello, at.secret)
        link.send(request)
        done = False
        while not done:
            # a lead that is alive sends heartbeats, so a message comes in time
            with _answered(link, reply.lead_timeout_s):
                message, _ = link.receive()
            if isinstance(message, m.Refusal):
                raise Refused(in_words(plain_reason(message.reason)))
            if isinstance(message, m.OperatorAnswer):
                done = message.done
                yield message
            elif not isinstance(message, m.Alive):
                raise LinkError(f"the lead sent {type(message).__name__} instead of an answer")
    finally:
        link.close()
        link.dispose()


def may_run(at: JobAddress, name: str) -> bool:
    """Whether the lead of the job may still run at this address. False if no process listens there, or a
    process that is not this lead. If the address cannot be reached, the lead may still run."""
    if no_process_listens(at.host, at.port):
        return False
    try:
        link = dial_tcp(at.host, at.port, LEAD)
    except LinkError:
        return True
    try:
        with patience(link):
            hello = m.OperatorHello(name=name, job=at.job, digests=offers("auto", link.kind))
            introduce(link, hello, at.secret)
    except LinkEnded:
        return True
    except (LinkError, Refused):
        return False
    link.close()
    link.dispose()
    return True


@contextmanager
def _answered(link: Link, within_s: float) -> Iterator[None]:
    """Close the link if the body takes longer than `within_s`, and raise a LinkError: the lead has
    not answered."""
    with patience(link, within_s) as expired:
        try:
            yield
        except LinkError as error:
            silent = LinkError(f"it has not answered for {within_s:g} s")
            raise (silent if expired.is_set() else error) from None
