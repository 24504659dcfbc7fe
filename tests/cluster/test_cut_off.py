"""The network of a worker is cut for good: no link is closed, and no bytes arrive any more."""

import subprocess
import time

import pytest

from tests.cluster.machines import Machines, begin
from tests.cluster.namespaces import Host, network
from tests.cluster.processes import TORTURED, wait_until

LEAD_TIMEOUT_S = 5


def start(machines: Machines, first: Host, second: Host, *flags: object) -> None:
    """Start a job that trains with `guest`, a worker on a machine of its own."""
    lead = begin(
        *(machines, first, "--servers", 1, "--local-workers", 1, "--workers", 2, "--timer", "1s"),
        *("--rounds", 1_000_000, "--max-seconds", 400, *flags),
    )
    machines.start("guest", second, "worker", "job.py", "--connect", lead, "--name", "guest")
    wait_until(lambda: any(line["round"] > 5 for line in machines.noted("rounds")), "they train")


def test_a_worker_that_is_cut_off_ends_with_one_line_and_the_job_continues(
    machines: Machines,
) -> None:
    with network(2) as (first, second):
        start(machines, first, second, "--lead-timeout", LEAD_TIMEOUT_S)
        second.cut()
        assert machines.end_of("guest") == 1
        last = machines.said("guest").splitlines()[-1]
        assert last.startswith("polyrhythm: guest ends: the lead has sent nothing for ")
        assert last.endswith(f"(--lead-timeout {LEAD_TIMEOUT_S})")
        wait_until(lambda: machines.noted("evicted"), "the lead evicts it")
        before = machines.noted("rounds")[-1]["round"]
        wait_until(lambda: machines.noted("rounds")[-1]["round"] > before, "the others go on")
        assert machines.alive("train")


@pytest.mark.skipif(not TORTURED, reason="under POLYRHYTHM_TORTURE: it takes more than a minute")
@pytest.mark.timeout(300)
def test_both_ends_close_a_link_that_is_cut(machines: Machines) -> None:
    """Both ends close the link after more than a minute. The time-out of a link is that long
    because it also ends links to processes that are only stopped."""
    with network(2) as (first, second):
        start(machines, first, second, "--lead-timeout", LEAD_TIMEOUT_S)
        assert links(first, second)
        second.cut()
        began_s = time.monotonic()
        wait_until(lambda: not links(first, second), "the lead's machine ends the link", 150)
        assert time.monotonic() - began_s > 55
        assert machines.alive("train")


def links(here: Host, there: Host) -> int:
    """Return the established connections between the first machine and the second."""
    command = ["ip", "netns", "exec", here.namespace, "cat", "/proc/net/tcp"]
    table = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    peer = "".join(f"{int(part):02X}" for part in reversed(there.address.split(".")))
    rows = [line.split() for line in table.stdout.splitlines()[1:]]
    return sum(row[2].startswith(peer) and row[3] == "01" for row in rows)
