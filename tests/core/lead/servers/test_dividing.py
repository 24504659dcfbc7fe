"""The lead decides once how the job's model is cut, when a worker says how large it is."""

from typing import Any

import msgspec
import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.placement.division import LEAST_SUMMED, LOCAL_NBYTES
from polyrhythm.wire import messages as m
from tests.core.stage import Stage, of, sent, spec

NBYTES = 93_000_000
SPEC = spec((NBYTES // 4,))


class Dividing(Stage):
    """Servers and two workers on hosts of these identities."""

    def __init__(self, *hosts: str, listens: str = "127.0.0.1", **job: Any) -> None:
        self.hosts, self.listens = hosts, listens
        super().__init__(servers=2, workers=2, slice_nbytes=0, **job)
        for worker in range(2):
            self.hello(f"worker-{worker}", host=hosts[-1], identity=f"{hosts[-1]}/u")

    def server(self, number: int, **fields: Any) -> list[Any]:
        host = self.hosts[min(number, len(self.hosts) - 1)]
        address = m.Address(self.listens, 7000 + number, "", f"{host}/u")
        return super().server(number, address=address, host=host, **fields)

    def size(self, worker: int = 0, nbytes: int = NBYTES) -> m.Division:
        effects = self.tell(m.ModelSize(**self.who(worker), nbytes=nbytes))
        (answer,) = sent(effects, m.Divided, f"w{worker}")
        return answer.division

    def placed(self, division: m.Division | None = None, worker: int = 0) -> list[Any]:
        return self.attach(worker, msgspec.structs.replace(SPEC, division=division))


def test_slices_of_one_machine_have_at_most_two_mebibytes() -> None:
    division = Dividing("a").size()
    assert 0.9 * LOCAL_NBYTES < division.slice_nbytes <= LOCAL_NBYTES


@pytest.mark.parametrize("hosts", [("a", "b"), ("", "a")], ids=["two hosts", "unknown host"])
def test_slices_between_machines_are_as_the_equation_says(hosts: tuple[str, ...]) -> None:
    x = (NBYTES * 1.2e5 / 2) ** 0.5
    assert 0.9 * x < Dividing(*hosts).size().slice_nbytes <= x


def test_slices_are_smaller_if_their_sums_are_sent_back_early() -> None:
    division = Dividing("a", "b", optimizer_on="workers", timer="off").size()
    share = NBYTES / 2 / LEAST_SUMMED
    assert 0.9 * share < division.slice_nbytes <= share + 64


def test_a_job_that_listens_for_other_machines_is_cut_for_them() -> None:
    assert Dividing("a", listens="192.0.2.7").size().slice_nbytes > LOCAL_NBYTES


def test_it_is_decided_once_and_servers_and_the_journal_are_told() -> None:
    stage = Dividing("a", placement="aware")
    division = stage.size()
    assert stage.size(1, nbytes=5) == division == stage.size()
    effects = stage.placed(division)
    (place, _) = sent(effects, m.Place)
    assert place.spec.division == division and division.probes == 4
    (note,) = [note for note in of(effects, fx.Note) if note.what == "placed"]
    assert note.fields["slice_nbytes"] <= division.slice_nbytes
    assert sum(note.fields["slices"]) == len(place.routes)


def test_a_restored_lead_remembers_it() -> None:
    stage = Dividing("a", "b")
    division = stage.size()
    stage.lead = LeadMachine.restore(stage.job, stage.lead.snapshot())
    assert stage.size(1, nbytes=7) == division


def test_a_worker_that_did_not_ask_or_cuts_otherwise_is_refused() -> None:
    stage = Dividing("a")
    (refusal,) = sent(stage.placed(), m.Refusal)
    assert "did not ask" in str(refusal.reason)
    stage = Dividing("a")
    division = stage.size()
    other = msgspec.structs.replace(division, slice_nbytes=division.slice_nbytes // 2)
    (refusal,) = sent(stage.placed(other), m.Refusal)
    assert "its slices differ" in str(refusal.reason)
    stage = Dividing("a")
    stage.placed(stage.size())
    (refusal,) = sent(stage.placed(other, worker=1), m.Refusal)
    assert "its slices differ" in str(refusal.reason)


def test_a_worker_that_says_too_small_a_size_is_refused() -> None:
    """Otherwise the lead would cut its model into billions of slices."""
    stage = Dividing("a")
    division = stage.size(nbytes=1)
    for given in (None, division):
        huge = msgspec.structs.replace(spec((2**38,)), division=given)
        (refusal,) = sent(stage.attach(0 if given is None else 1, huge), m.Refusal)
        assert "more than 2097152 slices of 64 bytes" in str(refusal.reason)


def test_a_size_of_nothing_or_too_much_is_harmless() -> None:
    for nbytes in (0, m.MOST_COUNT):
        assert 64 <= Dividing("a", "b").size(nbytes=nbytes).slice_nbytes <= 2**24
