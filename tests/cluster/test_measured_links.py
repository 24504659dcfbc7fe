"""Receivers measure links of known rates: hosts in network namespaces, shaped with `tc`."""

import json
import subprocess
import sys

import pytest

from tests.cluster.namespaces import Host, network

pytestmark = pytest.mark.slow
PORT = 7100
MBIT = 10**6 / 8


def run(host: Host, *words: object) -> "subprocess.Popen[str]":
    inside = [
        "ip",
        "netns",
        "exec",
        host.namespace,
        sys.executable,
        "-m",
        "tests.cluster.rated_link",
    ]
    command = [*inside, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def exchange(hosts: list[Host], frames: int, nbytes: int) -> tuple[dict[str, float], list[float]]:
    """All hosts but the first send to the first one. Returns what it has measured, and what the kernels
    of the senders say about their rates."""
    first, *senders = hosts
    receiver = run(first, "receive", first.address, PORT, len(senders))
    assert receiver.stdout is not None and receiver.stdout.readline() == "listening\n"
    words = (first.address, PORT, frames, nbytes)
    sending = [run(host, "send", f"w{number}", *words) for number, host in enumerate(senders)]
    said = [json.loads(each.communicate(timeout=60)[0])["delivery_rate"] for each in sending]
    return json.loads(receiver.communicate(timeout=60)[0]), said


@pytest.mark.parametrize("rate", [20, 220])
def test_a_link_has_the_rate_that_its_sender_knows(rate: int) -> None:
    with network(2) as hosts:
        hosts[1].shape(f"{rate}mbit")
        measured, said = exchange(hosts, frames=5 if rate < 100 else 15, nbytes=1_000_000)
    # the headers of TCP, IP and Ethernet are 4.5% of a full packet
    assert measured["w0"] == pytest.approx(0.955 * rate * MBIT, rel=0.15)
    # the kernel speaks of the last few packets, which leave unevenly on a busy machine
    assert measured["w0"] == pytest.approx(said[0], rel=0.5)
    assert measured["throughput"] == measured["w0"]


def test_links_that_share_a_card_are_summed_rightly() -> None:
    with network(4) as hosts:
        hosts[0].shape("60mbit", incoming=True)
        hosts[3].shape("8mbit")
        measured, _ = exchange(hosts, frames=3, nbytes=1_000_000)
    assert measured["w2"] == pytest.approx(0.955 * 8 * MBIT, rel=0.15)
    # A busy machine lets bytes gather, which then arrive at once. Each of the other links alone could
    # carry 60 Mbit/s, so a wrong sum is at least twice as much.
    assert measured["throughput"] == pytest.approx(0.955 * 60 * MBIT, rel=0.5)


def test_a_probe_slice_is_long_enough() -> None:
    with network(2) as hosts:
        hosts[1].shape("50mbit")
        measured, _ = exchange(hosts, frames=8, nbytes=40_000)
    assert measured["w0"] == pytest.approx(0.955 * 50 * MBIT, rel=0.5)
