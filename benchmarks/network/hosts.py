"""Hosts that are network namespaces on a bridge, each with a rate in both directions.

Everything that is made lies in namespaces whose names contain the id of this process. They are
deleted when the `with` block ends, however it ends; what a killed laboratory has left is deleted by
the next one.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

PREFIX = "10.78.0"
MTU = 9000
"""Large packets, so that two cores can move the traffic of six hosts."""
BURST_NBYTES = 128 * 1024
"""At least as much as the kernel passes at once (64 kB), or it would cut packets again."""
QUEUE_S = 0.05
"""How long a byte waits at most in the queue of a card before it is dropped, as in a network with
round trips of this length."""
CONGESTION = "cubic"
"""How TCP avoids congestion: as by default on Linux, also where the machine's own default is another
one. The routes of hosts name it."""
NEEDS = (
    "needs Linux, root, and the commands ip and tc with network namespaces, veth, bridge and tbf"
)
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_NAME = re.compile(r"polylab(\d+)-\w+")


class LaboratoryMissing(Exception):
    """This machine cannot have network namespaces with given rates."""


def _call(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise LaboratoryMissing(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Host:
    """A host with an address of its own. Commands run on it with `inside` before their words."""

    def __init__(self, namespace: str, number: int, switch: str) -> None:
        self.namespace = namespace
        self.number = number
        self.address = f"{PREFIX}.{number + 1}"
        self.inside = ("ip", "netns", "exec", namespace)
        self._outgoing = (namespace, "eth0")
        self._incoming = (switch, f"port{number}")
        self._shaped = False

    def plug_in(self) -> None:
        (namespace, device), (switch, port) = self._outgoing, self._incoming
        _call(
            *("ip", "-n", namespace, "link", "add", device, "mtu", str(MTU), "type", "veth"),
            *("peer", "name", port, "mtu", str(MTU), "netns", switch),
        )
        _call("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
        _call("ip", "-n", namespace, "address", "add", f"{self.address}/24", "dev", device)
        for name in ("lo", device):
            _call("ip", "-n", namespace, "link", "set", name, "up")
        if CONGESTION in _AVAILABLE.read_text().split():
            route = ("route", "replace", f"{PREFIX}.0/24", "dev", device, "proto", "kernel")
            words = (*route, "scope", "link", "src", self.address, "congctl", CONGESTION)
            _call("ip", "-n", namespace, *words)

    def shape(self, outgoing: float, incoming: float) -> None:
        """Limit what the host sends and receives to these rates, in Mbit/s, from now on."""
        verb = "change" if self._shaped else "add"
        for (namespace, device), rate in (
            (self._outgoing, outgoing),
            (self._incoming, incoming),
        ):
            bits = int(rate * 1e6)
            queue = max(int(QUEUE_S * bits / 8), 2 * BURST_NBYTES)
            words = f"rate {bits}bit burst {BURST_NBYTES} limit {queue + BURST_NBYTES}".split()
            _call("tc", "-n", namespace, "qdisc", verb, "dev", device, "root", "tbf", *words)
        self._shaped = True

    def carried(self) -> tuple[int, int]:
        """How many bytes the host has sent and received."""
        told = json.loads(_call("ip", "-n", self.namespace, "-s", "-j", "link", "show", "eth0"))
        stats = told[0]["stats64"]
        return stats["tx"]["bytes"], stats["rx"]["bytes"]


def why_not() -> str | None:
    """Why this machine cannot have a laboratory, in one line; None if it can."""
    if os.name != "posix" or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return f"the laboratory {NEEDS}; this process is not root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"the laboratory {NEEDS}; there is no {' and no '.join(missing)}"
    try:
        with hosts(1) as (host,):
            host.shape(100, 100)
    except LaboratoryMissing as error:
        return f"the laboratory {NEEDS}; {error}"
    return None


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Make hosts that reach each other. SIGTERM ends the block as Ctrl-C does."""
    _delete_left_over()
    mark = f"polylab{os.getpid()}"
    switch, names = f"{mark}-switch", [f"{mark}-h{number}" for number in range(count)]
    made: list[str] = []
    with _interrupted_by_sigterm():
        try:
            for name in (switch, *names):
                _call("ip", "netns", "add", name)
                made.append(name)
            _call("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
            _call("ip", "-n", switch, "link", "set", "bridge", "mtu", str(MTU), "up")
            found = [Host(name, number, switch) for number, name in enumerate(names)]
            for host in found:
                host.plug_in()
            yield found
        finally:
            for name in made:
                _call("ip", "netns", "del", name)


def _delete_left_over() -> None:
    """Delete the namespaces of laboratories whose process is gone, with the processes in them."""
    for line in _call("ip", "netns", "list").splitlines():
        name = line.split()[0]
        match = _NAME.fullmatch(name)
        if match is None or Path(f"/proc/{match[1]}").exists():
            continue
        for pid in _call("ip", "netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _call("ip", "netns", "del", name)


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class IdleTime:
    """The share of the processors' time that was idle, between any two moments of this block."""

    EVERY_S = 0.2

    def __init__(self) -> None:
        self._seen: list[tuple[float, int, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "IdleTime":
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._ended.wait(self.EVERY_S):
            self._look()

    def _look(self) -> None:
        fields = [int(part) for part in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        idle = fields[3] + fields[4]  # idle, and waiting for a disk
        self._seen.append((time.monotonic(), idle, sum(fields)))

    def between(self, began_s: float, ended_s: float) -> float:
        first = max((seen for seen in self._seen if seen[0] <= began_s), default=self._seen[0])
        last = min((seen for seen in self._seen if seen[0] >= ended_s), default=self._seen[-1])
        return (last[1] - first[1]) / max(1, last[2] - first[2])
