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
_NO_HOST = "02:00:00:00:00:99"


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

    def shape(self, rate: str, *, incoming: bool = False) -> None:
        """Limit the host's data rate in both directions, or only for what it receives."""
        sends, receives = (self.namespace, "eth0"), (self._switch, self._port)
        for namespace, device in (receives,) if incoming else (sends, receives):
            tbf = ["root", "tbf", "rate", rate, "burst", "32kbit", "latency", "400ms"]
            command = ["tc", "-n", namespace, "qdisc", "add", "dev", device, *tbf]
            subprocess.run(command, capture_output=True, timeout=20, check=True)

    def cut(self) -> None:
        """Drop all packets of this host from now on, without closing any connection."""
        _ip("link", "set", self._port, "down", of=self._switch)

    def part_from(self, other: "Host") -> None:
        """Let no packet pass between this host and the other one from now on, without closing any
        connection: each sends to a hardware address that no host has."""
        for here, there in ((self, other), (other, self)):
            entry = (there.address, "lladdr", _NO_HOST, "nud", "permanent", "dev", "eth0")
            _ip("neigh", "replace", *entry, of=here.namespace)

    def rejoin(self, other: "Host") -> None:
        """Let packets pass again."""
        for here, there in ((self, other), (other, self)):
            _ip("neigh", "del", there.address, "dev", "eth0", of=here.namespace)

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
