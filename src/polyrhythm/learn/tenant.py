"""A second tenant beside a worker (FSP's *Natural*): a process that keeps one core busy.

The tenant ends whenever its worker ends, because its standard input is closed then. It imports
nothing of this package, so that it starts at once and takes little memory.
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
    """Yield the identifier of the tenant's process."""
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
    # Ctrl-C is meant for the worker, whose end also ends the tenant
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _keep_busy()
