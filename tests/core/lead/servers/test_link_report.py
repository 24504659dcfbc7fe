"""What was measured of links comes into the journal, but not every measurement."""

from typing import Any

import pytest
from msgspec.structs import replace

from polyrhythm.core import effects as fx
from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.lead.servers.placement import forecast_hosts
from polyrhythm.core.placement.network import Average
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.wire import messages as m
from tests.core.lead.servers.test_measured import MB, on_hosts, report
from tests.core.stage import SECOND_NS, of, spec


def lines(stage: Any, rate: float, worker: int = 1, *, after_s: int = 5) -> list[dict[str, Any]]:
    """The lines of the journal when the server has measured its link from a worker."""
    stage.now_ns += after_s * SECOND_NS
    began_ns = stage.now_ns - 2 * SECOND_NS
    nbytes = round(rate)
    report(stage, m.Burst(f"w{worker}", began_ns, began_ns + SECOND_NS, nbytes), server=0)
    effects = stage.tell(m.Alive(server=0))
    return [note.fields for note in of(effects, fx.Note) if note.what == "links"]


def test_the_first_measurement_and_changes_are_written() -> None:
    stage = on_hosts()
    stage.attach(0, spec((MB,)))
    (first,) = lines(stage, 10 * MB)
    assert first["rates"] == {"a-2": {"c": 10 * MB}}
    assert first["throughputs"] == {"a-2": 10 * MB, "c": 10 * MB}
    assert first["hosts"] == {"a": ["w0"], "a-2": ["w1"], "c": ["s0"]}
    # 4 MB from each of two workers, and as much to them
    assert (first["slowest"], first["seconds"]) == ("s0", pytest.approx(0.8))
    assert lines(stage, 20 * MB, after_s=3) == [], "less than 10 s later"
    (changed,) = lines(stage, 15 * MB, after_s=30)
    assert changed["rates"]["a-2"]["c"] == pytest.approx(15 * MB, rel=0.1)
    assert lines(stage, 16 * MB, after_s=30) == [], "no rate has changed by a tenth"
    (further,) = lines(stage, 5 * MB, worker=0, after_s=30)
    assert further["rates"].keys() == {"a", "a-2"}


@pytest.mark.parametrize(
    ("sync", "optimizer_on", "overlapping"),
    [("asp", "servers", True), ("bsp", "servers", False), ("bsp", "workers", True)],
)
def test_pulls_overlap_pushes_without_rounds_and_where_workers_make_the_steps(
    sync: str, optimizer_on: str, overlapping: bool
) -> None:
    stage = on_hosts()
    stage.attach(0, spec((MB,)))
    lead = stage.lead
    job = replace(stage.job, sync=sync, optimizer_on=optimizer_on)
    throughputs = {"c": 10.0 * MB}
    forecast = forecast_hosts(
        job, traits_of(sync), lead.view, lead.parts.routing, lead.parts.network, throughputs
    )
    assert forecast is not None
    # two workers send a model each, and get as much
    once_s = 2 * lead.parts.routing.nbytes / throughputs["c"]
    assert forecast.seconds({0: lead.parts.routing.nbytes}) == pytest.approx(
        once_s if overlapping else 2 * once_s
    )


def test_a_restored_lead_does_not_write_the_same_again() -> None:
    stage = on_hosts()
    assert lines(stage, 10 * MB)
    stage.lead = LeadMachine.restore(stage.job, stage.lead.snapshot())
    assert lines(stage, 10 * MB, after_s=30) == []


@pytest.mark.parametrize("rate", [0.0, 0.5, 2e12])
def test_absurd_rates_are_not_written(rate: float) -> None:
    assert lines(on_hosts(), rate) == []


@pytest.mark.parametrize("rate", [float("inf"), float("nan"), 0.0, -1.0])
def test_a_rate_that_is_no_number_is_left_out(rate: float) -> None:
    stage = on_hosts()
    stage.lead.parts.network._links["a"] = {"c": Average(rate)}
    (line,) = lines(stage, 10 * MB)
    assert line["rates"] == {"a": {}, "a-2": {"c": 10 * MB}}


def test_without_measurements_nothing_is_written() -> None:
    stage = on_hosts()
    stage.now_ns += 60 * SECOND_NS
    effects = stage.tell(m.Alive(server=0))
    assert not [note for note in of(effects, fx.Note) if note.what == "links"]
