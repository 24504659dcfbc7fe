"""Hosts made of network namespaces: a switch, and hosts with one address each behind it.

All interfaces are inside namespaces that this module makes, so they are deleted with the
namespaces.
"""

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.commands.start import Process, start

_PREFIX = "10.77.0"


def _ip(*args: object, of: str | None = None) -> subprocess.CompletedProcess[str]:
    inside = () if of is None else ("-n", of)
    command = ["ip", *inside, *(str(arg) for arg in args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)


class Host:
    def __init__(self, namespace: str, address: str, port_of_switch: tuple[str, str]) -> None:
        self.namespace = namespace
        self.address = address
        self._switch, self._port = port_of_switch

    def start(self, *args: object, cwd: Path, stdout: IO[str], stderr: IO[str]) -> Process:
        """Start a `polyrhythm` command on this host."""
        return start(*args, cwd=cwd, stdout=stdout, stderr=stderr, network=self.namespace)

    def shape(self, rate: str) -> None:
        """Limit the host's data rate in both directions."""
        for namespace, device in ((self.namespace, "eth0"), (self._switch, self._port)):
            tbf = ["root", "tbf", "rate", rate, "burst", "32kbit", "latency", "400ms"]
            command = ["tc", "-n", namespace, "qdisc", "add", "dev", device, *tbf]
            subprocess.run(command, capture_output=True, timeout=20, check=True)

    def cut(self) -> None:
        """Drop all packets of this host from now on, without closing any connection."""
        _ip("link", "set", self._port, "down", of=self._switch)

    def sent_nbytes(self) -> int:
        """Return the number of bytes that this host has sent."""
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        command = ["ip", "netns", "exec", self.namespace, "cat", path]
        return int(subprocess.run(command, capture_output=True, timeout=20, check=True).stdout)


@contextmanager
def network(count: int) -> Iterator[list[Host]]:
    """Make `count` hosts that reach each other; skip the test where namespaces cannot be made."""
    mark = f"poly{uuid.uuid4().hex[:6]}"
    switch, names = f"{mark}-switch", [f"{mark}-{number}" for number in range(count)]
    made: list[str] = []
    try:
        try:
            for name in (switch, *names):
                _ip("netns", "add", name)
                made.append(name)
            _ip("link", "add", "bridge", "type", "bridge", of=switch)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        _ip("link", "set", "bridge", "up", of=switch)
        yield [_plug_in(switch, name, number) for number, name in enumerate(names)]
    finally:
        for name in made:
            _ip("netns", "del", name)


def _plug_in(switch: str, name: str, number: int) -> Host:
    address, port = f"{_PREFIX}.{number + 1}", f"port{number}"
    _ip("link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch, of=name)
    _ip("link", "set", port, "master", "bridge", "up", of=switch)
    _ip("address", "add", f"{address}/24", "dev", "eth0", of=name)
    for device in ("lo", "eth0"):
        _ip("link", "set", device, "up", of=name)
    return Host(name, address, (switch, port))
