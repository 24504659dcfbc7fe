"""Faults of one line, each of which breaks one rule of the design's §9. A test switches one on and
must see it.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from polyrhythm.core import arrivals
from polyrhythm.core.ledger import Ledger, Verdict
from polyrhythm.core.outstanding import Outstanding
from polyrhythm.core.receipts import Receipts
from polyrhythm.core.replication import Replication
from polyrhythm.core.versions import SliceVersions, Versions
from polyrhythm.core.worker import WorkerMachine
from polyrhythm.sim.memory import Memory

Patch = pytest.MonkeyPatch


def no_dedupe(patch: Patch) -> None:
    def judge(ledger: Ledger, worker: int, incarnation: int, *_: int) -> Verdict:
        known = ledger._members.get(worker) == incarnation
        return Verdict.NEW if known else Verdict.STRANGER

    patch.setattr(Ledger, "judge", judge)


def acknowledged_before_it_is_copied(patch: Patch) -> None:
    patch.setattr(Replication, "issue", lambda *_: True)


def replicas_heed_anybody(patch: Patch) -> None:
    patch.setattr(Ledger, "heeds", lambda *_: True)


def a_replica_folds_twice(patch: Patch) -> None:
    copy = Memory.copy

    def twice(memory: Memory, message: Any) -> Any:
        return copy(memory, msgspec.structs.replace(message, cargo=message.cargo * 2))

    patch.setattr(Memory, "copy", twice)


def stale_acknowledgements_count(patch: Patch) -> None:
    acknowledge = Outstanding.acknowledge
    late = 10**9

    def anyhow(outstanding: Outstanding, server: int, sequence: int, _: int) -> None:
        acknowledge(outstanding, server, sequence, late)

    patch.setattr(Outstanding, "acknowledge", anyhow)
    take = WorkerMachine._acknowledge
    patch.setattr(
        WorkerMachine,
        "_acknowledge",
        lambda worker, server, sequence, _, now_ns: take(worker, server, sequence, 0, now_ns),
    )


def everything_is_sent_again(patch: Patch) -> None:
    reroute = Outstanding.reroute
    everybody = range(100)
    patch.setattr(Outstanding, "reroute", lambda sent, routes, _: reroute(sent, routes, everybody))


def a_learner_counts_at_once(patch: Patch) -> None:
    confirm = Replication.confirm

    def adopted(replication: Replication, peer: int, rows: Any, **_: bool) -> Any:
        replication._followed.pop(peer, None)
        return confirm(replication, peer, rows, adopted=True)

    patch.setattr(Replication, "confirm", adopted)


def who_is_promoted_keeps_what_it_acknowledged(patch: Patch) -> None:
    patch.setattr(Receipts, "take_over", lambda *_, **__: ())


def rows_stay_behind(patch: Patch) -> None:
    adopt = Ledger.adopt
    patch.setattr(Ledger, "adopt", lambda ledger, stamp, _: adopt(ledger, stamp, ()))


def reports_outlive_their_epoch(patch: Patch) -> None:
    patch.setattr(
        arrivals._Coming,
        "lacks",
        lambda coming, reigns: {server for server in reigns if server not in coming.reports},
    )


def what_a_cut_link_lost_stays_lost(patch: Patch) -> None:
    reroute = Outstanding.reroute
    patch.setattr(Outstanding, "reroute", lambda sent, routes, _: reroute(sent, routes))


def folds_write_what_is_read(patch: Patch) -> None:
    patch.setattr(Versions, "leased", lambda *_: False)
    patch.setattr(SliceVersions, "target", lambda versions, slice_: versions.slot(slice_))


def counted_when_sent(patch: Patch) -> None:
    def complete(_: arrivals.Arrivals, message: Any, __: Any) -> arrivals.Complete:
        return arrivals.Complete(message, message.round)

    patch.setattr(arrivals.Arrivals, "trailer", complete)
    patch.setattr(arrivals.Arrivals, "arrived", lambda *_: None)


MUTANTS: dict[Callable[[Patch], None], str] = {
    no_dedupe: "bsp",
    acknowledged_before_it_is_copied: "asp",
    a_replica_folds_twice: "bsp",
    stale_acknowledgements_count: "asp",
    everything_is_sent_again: "asp",
    a_learner_counts_at_once: "asp",
    who_is_promoted_keeps_what_it_acknowledged: "asp",
    rows_stay_behind: "asp",
    reports_outlive_their_epoch: "asp",
    folds_write_what_is_read: "asp",
    counted_when_sent: "bsp",
}
"""With the policy under which it is looked for."""
