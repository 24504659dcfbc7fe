"""A lead that is restored from its encoded state after every event does exactly what it would have
done otherwise: the effects of every event, the times at which it wants to be woken, what it waits
for, and the journal are equal.

The tests try 8 jobs. With POLYRHYTHM_TORTURE=N and N > 1 they try 200.
"""

import os
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import pytest

from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.machine import Effect
from polyrhythm.sim.server import node
from polyrhythm.wire.messages import JobSpec
from tests.sim import ledger, test_simulated_migration, test_simulated_sharing
from tests.sim import test_simulated_statistics as statistics
from tests.sim.staged_run import Run

TORTURE = int(os.environ.get("POLYRHYTHM_TORTURE", "1"))
SEEDS = range(8) if TORTURE == 1 else range(200)
_COMPARED_EVERY = 40
"""After every so many events all attributes of the restored lead are compared, which takes long."""
_SYNCS = ("bsp", "fsp", "ssp:2", "asp", "psp", "fsp abandon 2ms", "ssp-restart:2")


def text_of(seed: int) -> str:
    """The scenario of a seed: every policy and kind, faults of workers and servers, replicas, points
    that travel, private data, servers that join and leave, and checkpoints."""
    sync = _SYNCS[seed % len(_SYNCS)]
    match seed % 7:
        case 0:
            text = ledger.scenario(sync, seed)
        case 1:
            text = ledger.storm(sync.partition(" abandon ")[0], seed)
        case 2 | 3:
            text = statistics.text_of(seed)
        case 4:
            text = test_simulated_migration.storm(seed)
        case 6:
            text = ledger.stir(sync.partition(" abandon ")[0], seed)
        case _:
            text = test_simulated_sharing.storm(seed)
    if seed % 4 < 2 and "checkpoint_every" not in text:
        text = text.replace("[job]", '[job]\ncheckpoint_every = "100ms"', 1)
    return text


class Traced(LeadMachine):
    traces: ClassVar[list[str]] = []

    def handle(self, event: Any, now_ns: int) -> list[Effect]:
        effects = list(super().handle(event, now_ns))
        self.traces.append(repr((now_ns, event, effects, self.wake_at(), self.why())))
        return effects


class Restored(Traced):
    """Restores itself after every event."""

    def handle(self, event: Any, now_ns: int) -> list[Effect]:
        effects = super().handle(event, now_ns)
        restored = LeadMachine.restore(self.job, self.snapshot(), self.parts.outbox.seat)
        if not len(self.traces) % _COMPARED_EVERY:
            assert not list(differences(vars(self), vars(restored)))
        self.__dict__ = restored.__dict__
        return effects


def differences(one: Any, other: Any, path: str = "lead", seen: Any = None) -> Iterator[str]:
    """Where two leads differ, in all of their attributes. *Every attribute is compared, not only those
    in the state: so an attribute that changes and is not in the state is found.*"""
    seen = set() if seen is None else seen
    if one is other or (id(one), id(other)) in seen:
        return
    if callable(one) and hasattr(one, "__qualname__"):
        if one.__qualname__ != other.__qualname__:
            yield path
    elif isinstance(one, dict) and isinstance(other, dict):
        yield from differences([*one.items()], [*other.items()], path, seen)
    elif isinstance(one, (list, tuple)) and type(one) is type(other) and len(one) == len(other):
        for index, (mine, its) in enumerate(zip(one, other, strict=True)):
            yield from differences(mine, its, f"{path}[{index}]", seen)
    elif type(one).__module__.startswith("polyrhythm") and not isinstance(one, JobSpec):
        seen.add((id(one), id(other)))
        names = {*getattr(one, "__dict__", ()), *getattr(type(one), "__struct_fields__", ())}
        names |= {name for base in type(one).__mro__ for name in getattr(base, "__slots__", ())}
        for name in sorted(names):
            if isinstance(one, LeadOutbox) and name == "out":
                continue  # the effects of the last event
            if name in ("_unchecked", "_checked"):
                continue  # what `check` has already seen
            if name == "_mine":  # an index, which is never iterated over
                mine, its = (sorted(getattr(each, name).items()) for each in (one, other))
                yield from differences(mine, its, f"{path}.{name}", seen)
                continue
            if hasattr(one, name) != hasattr(other, name):
                yield f"{path}.{name}"
            elif hasattr(one, name):
                mine, its = getattr(one, name), getattr(other, name)
                yield from differences(mine, its, f"{path}.{name}", seen)
    elif repr(one) != repr(other) and one != other:  # NaN does not equal NaN
        yield path


def traced(text: str, seed: int, machine: type[Traced]) -> tuple[list[str], list[Any], Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "LeadMachine", machine)
        patch.setattr(Traced, "traces", [])
        run = Run(text, seed=seed, check=False)
        return Traced.traces, run.journal.lines, run.end


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lead_that_is_restored_after_every_event_does_the_same(seed: int) -> None:
    text = text_of(seed)
    whole, restored = traced(text, seed, Traced), traced(text, seed, Restored)
    for at, (one, other) in enumerate(zip(whole[0], restored[0], strict=False)):
        assert one == other, f"event {at}"
    assert whole[1:] == restored[1:]


JOBS = [
    JobSpec(job="j", sync="bsp"),
    JobSpec(job="j", sync="ssp:2", kind="gradient"),
    JobSpec(job="j", sync="fsp", kind="local", store="s", checkpoint_every="1s", max_seconds=5.0),
]


@pytest.mark.parametrize("job", JOBS, ids=[job.sync for job in JOBS])
def test_an_attribute_that_is_not_in_the_state_is_found(job: JobSpec) -> None:
    """Every part of the lead that can have a further attribute gets one."""
    lead = LeadMachine(job)
    restored = LeadMachine.restore(job, lead.snapshot())
    assert not list(differences(lead, restored))
    parts = {
        name: part
        for name, part in vars(lead).items()
        if hasattr(part, "__dict__") and not isinstance(part, msgspec.Struct)
    }
    assert len(parts) > 10
    for name, part in parts.items():
        part.forgotten = True
        assert any("forgotten" in path for path in differences(lead, restored)), name
        del part.forgotten
