"""The operator's side of its link: what it reports if the lead is silent, or closes the link."""

import socket
import threading

import pytest

from polyrhythm.errors import LinkError
from polyrhythm.runtime.operator import JobAddress, ask_lead
from polyrhythm.wire.messages import OperatorRequest
from polyrhythm.wire.proof import Secret

REQUEST = OperatorRequest(what="stop")
SECRET = Secret("s" * 32)


def test_a_lead_that_does_not_answer_is_called_silent() -> None:
    """The kernel accepts a connection for a stopped process, so connecting succeeds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(LinkError, match=r"^it has not answered for 0.2 s$"):
            list(ask_lead(JobAddress("127.0.0.1", port, SECRET), "anna", REQUEST, answer_s=0.2))


def test_a_lead_that_closes_the_link_is_not_called_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        with pytest.raises(LinkError, match="^(?!it has not answered)"):
            list(ask_lead(JobAddress("127.0.0.1", port, SECRET), "anna", REQUEST))
        thread.join()
