"""The fork server ends without output when the engine ends, even if the engine has not read all
reports of the fork server."""

import os
import socket
import subprocess
import sys

from polyrhythm.engines.environment import environment
from polyrhythm.engines.requests import ChildRequest, pack_line
from polyrhythm.wire.messages import JobSpec
from tests.commands.start import WarmForkServers


def test_the_fork_server_ends_without_output_if_its_reports_are_not_read() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fork_server = WarmForkServers(
        [sys.executable, "-m", "polyrhythm.engines.fork_server", str(there.fileno()), "run"],
        pass_fds=[there.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=False,
        env={**environment([1]), "PYTHONUNBUFFERED": "1"},
    )
    there.close()
    request = ChildRequest(role="worker", number=0, name="w", job=JobSpec(job="j"))
    for _ in range(3):
        control, theirs = socket.socketpair()
        socket.send_fds(here, [pack_line(request)], [theirs.fileno()])
        control.close()
        theirs.close()
    # wait for the first report of the fork server, but leave it unread
    here.recv(1, socket.MSG_PEEK)
    here.close()
    _, said = fork_server.communicate(timeout=60)
    assert fork_server.returncode == 0
    assert "fork_server.py" not in said, os.linesep + said
