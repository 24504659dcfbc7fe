"""The opener's end of the handshake."""

import threading

import pytest

from polyrhythm.errors import LinkError
from polyrhythm.io.memory import memory_pair
from polyrhythm.runtime.net.handshake import introduce
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest


def test_a_server_that_speaks_another_protocol_is_left() -> None:
    """Its acceptor has not refused this worker, so the worker itself must."""
    here, there = memory_pair("w0", "s1")
    reply = m.HelloReply(
        name="s1",
        digest=Digest.NONE,
        address=m.Address("", 0, "", ""),
        protocol=m.PROTOCOL - 1,
    )
    answers = threading.Thread(target=lambda: (there.receive(), there.send(reply)))
    answers.start()
    hello = m.WorkerHello(name="w", job="j", identity="", digests=tuple(Digest))
    spoken = f"s1 speaks protocol {m.PROTOCOL - 1}, and w speaks {m.PROTOCOL}"
    with pytest.raises(LinkError, match=spoken):
        introduce(here, hello)
    answers.join()
    with pytest.raises(LinkError):
        there.receive()
