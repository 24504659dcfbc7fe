"""Runs one server in this process, without an engine, for a job that was started elsewhere.

The server asks the lead for its number and for the settings of the job. *The server announces an
address that other hosts can reach. If it listens on all addresses of its host, it announces the
local address of its link to the lead.*
"""

import os
import signal
import socket
from collections.abc import Callable

import msgspec

from polyrhythm.core.link_kinds import may_have_references
from polyrhythm.core.names import LEAD, server_name
from polyrhythm.core.values import plain_reason
from polyrhythm.engines.output import set_title
from polyrhythm.engines.worker_process import settle_in
from polyrhythm.errors import LinkError, PolyrhythmError, Refused
from polyrhythm.io.addresses import ANY_HOST
from polyrhythm.io.stream import StreamLink
from polyrhythm.io.tcp import dial_tcp
from polyrhythm.learn.staging import Staging
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.watch import report_in_words
from polyrhythm.runtime.net.acceptor import Listeners
from polyrhythm.runtime.net.dial import DialerFromOutside
from polyrhythm.runtime.net.handshake import introduce, offers, patience
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.server.node import ServerNode
from polyrhythm.tensors.optimizers import load_optimizers
from polyrhythm.wire import messages as m
from polyrhythm.wire.proof import Secret


def serve_remote(
    host: str,
    port: int,
    *,
    say: Callable[[str], None],
    check_host: Callable[[str], None],
    secret: Secret,
    listen_on: tuple[str, int] = ("", 0),
    job: str = "",
    link: str = "auto",
    digest: str = "auto",
) -> int:
    """Hold slices for the job whose lead is at host:port until the job ends. Returns the exit
    status of the command: 0, or 128 plus the number of the signal that ended the server.

    `listen_on`: the address to listen on. Without a host, the server listens on the local address
    of its link to the lead. `check_host` is called with that address and may refuse it.
    """
    settle_in()
    load_optimizers()  # this takes seconds, so it is done before the lead expects heartbeats
    to_lead = dial_tcp(host, port, LEAD)
    try:
        listen_host = listen_on[0] or to_lead.host_here
        check_host(listen_host)
        listeners = Listeners(listen_host, listen_on[1])
    except PolyrhythmError:
        to_lead.close()
        raise
    address = listeners.address
    if address.host in ANY_HOST:
        address = msgspec.structs.replace(address, host=to_lead.host_here)
    admitted = _enter(to_lead, address, job, digest, secret)
    name = server_name(admitted.server)
    node = ServerNode(
        admitted.server,
        admitted.job,
        address,
        lead=False,
        options=NodeOptions(
            digest=digest,
            link=link,
            fold_pause_s=Staging.parse(admitted.job.staging).fold_pause_s(admitted.server),
            report=lambda note: say(report_in_words(note.what, (name,), note.fields)),
            secret=secret,
        ),
        shared=may_have_references(link),
    )
    signals: list[int] = []

    def stop(number: int, frame: object) -> None:
        signals.append(number)
        node.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    set_title(f"polyrhythm: {name} of {admitted.job.name}", name)
    say(f"joined job {admitted.job.name} at {host}:{port} as {name}")
    say(f"{name} listens on {address.host}:{address.port}")
    node.listen(listeners)
    node.follow_lead(to_lead, DialerFromOutside(link, host))
    while not node.ended.wait(1.0):
        pass  # Python handles a signal only between two waits, so each wait is short
    node.close()
    listeners.close()
    assert node.outcome is not None
    if node.outcome.reason.code in ("lead-gone", "lead-lost"):
        raise LinkError(f"{name} ends: {in_words(node.outcome.reason)}")
    say(f"left: {in_words(node.outcome.reason)}")
    return 128 + signals[0] if signals else 0


def _enter(
    link: StreamLink, address: m.Address, job: str, digest: str, secret: Secret
) -> m.Admitted:
    """Ask the lead for a number and for the settings of the job."""
    hello = m.ServerHello(
        pid=os.getpid(),
        host=socket.gethostname(),
        name=f"a server on {socket.gethostname()} (process {os.getpid()})",
        job=job,
        address=address,
        identity=address.identity,
        digests=offers(digest, link.kind),
    )
    with patience(link):
        introduce(link, hello, secret)
    answer, _ = link.receive()
    while isinstance(answer, m.Alive):  # skip the heartbeats that the lead sends over every link
        answer, _ = link.receive()
    if isinstance(answer, m.Refusal):
        raise Refused(in_words(plain_reason(answer.reason)))
    if not isinstance(answer, m.Admitted):
        raise LinkError(f"the lead did not admit this server: it sent {type(answer).__name__}")
    return answer
