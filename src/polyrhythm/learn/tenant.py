"""A second process beside a worker (FSP's *Natural* straggler). This tenant keeps one core busy.

The tenant ends when its worker ends, for whatever reason, because the end of the worker closes the
tenant's standard input. It imports nothing of this package, so it starts quickly and needs little
memory.
"""

import contextlib
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

_END_TIMEOUT_S = 5.0
_BETWEEN_LOOKS = 100_000


@contextlib.contextmanager
def tenant() -> Iterator[int]:
    """Run a tenant during the `with` block. Yields its process id."""
    command = [sys.executable, "-I", "-S", __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            yield process.pid
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _keep_busy() -> None:
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(_BETWEEN_LOOKS):
            pass


if __name__ == "__main__":
    # Ignore Ctrl-C: the tenant ends when its worker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _keep_busy()
