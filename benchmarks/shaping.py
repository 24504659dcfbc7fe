"""A link with a given rate, for commands whose processes talk over TCP. It needs root, `ip` and `tc`."""

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_numbers = itertools.count()


@contextmanager
def shaped_link(rate: str) -> Iterator[tuple[str, ...]]:
    """Make a network namespace whose loopback link has this rate. Yields the words to put before a
    command so that it runs in this namespace."""
    name = f"shaped-{os.getpid()}-{next(_numbers)}"

    def call(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True, text=True, timeout=20)

    call("ip", "netns", "add", name)
    try:
        call("ip", "-n", name, "link", "set", "lo", "mtu", "1500", "up")
        tbf = ("tbf", "rate", rate, "burst", "256kb", "latency", "200ms")
        call("tc", "-n", name, "qdisc", "add", "dev", "lo", "root", *tbf)
        yield ("ip", "netns", "exec", name)
    finally:
        call("ip", "netns", "del", name)
