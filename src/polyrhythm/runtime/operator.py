"""The operator's end of its link to the lead: it says hello, makes one request, and reads the
answers."""

from collections.abc import Iterator

from polyrhythm.core import effects as fx
from polyrhythm.core.text import plain_reason
from polyrhythm.errors import LinkError, Refused
from polyrhythm.io.tcp import dial_tcp
from polyrhythm.observe.reasons import in_words
from polyrhythm.runtime.net.handshake import introduce, offers, patience
from polyrhythm.wire import messages as m
from polyrhythm.wire.proof import Secret


def ask_lead(
    host: str, port: int, name: str, job: str, secret: Secret, request: m.OperatorRequest
) -> Iterator[m.OperatorAnswer]:
    """Make a request to the lead of `job` at host:port, and yield its answers. The last one is `done`.
    Raises LinkError if the lead cannot be reached or the link ends before that, and Refused if the
    lead does not meet the request."""
    link = dial_tcp(host, port, fx.LEAD)
    try:
        hello = m.OperatorHello(name=name, job=job, digests=offers("auto", link.kind))
        with patience(link):
            reply = introduce(link, hello, secret)
        link.send(request)
        done = False
        while not done:
            with patience(link, reply.lead_timeout_s):  # the lead sends heartbeats meanwhile
                message, _ = link.receive()
            if isinstance(message, m.Refusal):
                raise Refused(in_words(plain_reason(message.reason)))
            if isinstance(message, m.OperatorAnswer):
                done = message.done
                yield message
            elif not isinstance(message, m.Alive):
                raise LinkError(f"the lead answered with {type(message).__name__}")
    finally:
        link.close()
        link.dispose()
