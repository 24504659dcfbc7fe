"""The measurements of the FSP paper: what they run, when a run ends, and what the page says."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.fsp.costs import cost_lines
from benchmarks.fsp.page import DOCS, write
from benchmarks.fsp.pool import Pool, expected_s, read_results
from benchmarks.fsp.problems import PROBLEMS, target_of
from benchmarks.fsp.recording import FIRST, Copies, Recorder, visits_of
from benchmarks.fsp.results import Results
from benchmarks.fsp.runs import Watch, command
from benchmarks.fsp.specs import POLICIES, Spec
from benchmarks.fsp.studies import SLOW_4X, STUDIES, runs_of


def flags_of(spec: Spec) -> dict[str, str]:
    words = spec.flags
    return dict(zip(words[::2], words[1::2], strict=True))


def result_of(spec: Spec, seconds: float | None = 5.0, **more: Any) -> dict[str, Any]:
    worker = {"compute_s": 4.0, "wait_s": 1.0, "cpu_s": 0.1, "points": 1_000, "seconds": 5.0}
    return {
        "spec": spec.described,
        "seconds": seconds,
        "limit_s": 30.0,
        "target": 1.0,
        "curve": [[0.0, 2.0], [5.0, 1.0]],
        "rounds": 10,
        "trained_s": 9.0,
        "intervals": [[1.0, 50.0]],
        "moved_points": 0,
        "spread_ms": 1.0,
        "workers": [{"name": f"worker-{n}", **worker} for n in range(4)],
        "visits": {"least": 3, "most": 4, "late_least": 1, "late_most": 2},
        "cores": 0.3,
        "machine": "x86_64, 16 cores",
        **more,
    }


# -- runs --------------------------------------------------------------------------------------


def test_a_stalled_worker_needs_its_factor_times_as_long_for_a_point() -> None:
    spec = Spec("kmeans", "fspv", ((3, 4.0),))
    flags = flags_of(spec)
    point_ms = 1e3 * spec.pass_s / spec.share
    assert float(flags["--min-step"].removesuffix("ms")) == pytest.approx(
        spec.batch * point_ms, rel=1e-3
    )
    worker, _, pause = flags["--stall"].partition("=")
    pause_ms, _, points = pause.partition("ms/")
    assert worker == "3"
    assert float(pause_ms) / int(points) == pytest.approx(3 * point_ms, rel=1e-3)


def test_policies_differ_only_in_their_own_flags() -> None:
    own = {"--sync", "--interval", "--migrate", "--coordination"}
    plain = {
        policy: {k: v for k, v in flags_of(Spec("lr", policy)).items() if k not in own}
        for policy in (*POLICIES, "interval 0.1")
        if policy != "asp"
    }
    assert len({json.dumps(flags, sort_keys=True) for flags in plain.values()}) == 1


def test_a_fixed_interval_is_a_part_of_a_pass() -> None:
    assert flags_of(Spec("fcm", "interval 0.05"))["--interval"] == "50.0000ms"


def test_asp_makes_its_number_of_contributions_per_pass() -> None:
    spec = Spec("kmeans", "asp 32")
    assert spec.share // spec.batch == 32
    assert flags_of(spec)["--sync"] == "asp"


def test_a_run_is_read_back_from_its_description() -> None:
    spec = Spec("nmf", "fspb", ((2, 4.0), (3, 8.6)), 2)
    assert Spec.read(json.loads(json.dumps(spec.described))) == spec


def test_studies_share_runs_and_make_those_of_the_first_start_first() -> None:
    specs = runs_of(STUDIES, range(2))
    assert len(set(specs)) == len(specs)
    assert [spec.rep for spec in specs] == sorted(spec.rep for spec in specs)
    assert sum(len(study()) for study in STUDIES.values()) > len(specs) / 2


# -- one run -----------------------------------------------------------------------------------


def test_copies_are_read_while_they_are_written(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, FIRST, 10)
    copies = Copies(tmp_path)
    assert list(copies.new()) == []
    recorder.visited(np.arange(3))
    recorder.keep({"a": np.arange(6.0).reshape(2, 3), "b": np.asarray(7.0)})
    (first,) = copies.new()
    assert first[1]["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and first[1]["b"] == 7.0
    recorder.keep({"a": np.ones((2, 3)), "b": np.asarray(8.0)})
    assert [float(parameter["b"]) for _, parameter in copies.new()] == [8.0]
    recorder.close()
    assert list(copies.new()) == []


def test_only_the_first_worker_makes_copies(tmp_path: Path) -> None:
    assert Recorder(tmp_path, FIRST, 1).due
    assert not Recorder(tmp_path, "worker-1", 1).due


def test_visits_of_all_workers_are_added(tmp_path: Path) -> None:
    for name, points in (("worker-0", [0, 1, 1]), ("worker-1", [1, 2])):
        recorder = Recorder(tmp_path, name, 3)
        for point in points:
            recorder.visited(np.array([point]))
        recorder.close()
        assert json.loads((tmp_path / f"{name}.json").read_text())["points"] == len(points)
    found = visits_of(tmp_path)
    assert (found["least"], found["most"]) == (1, 3)


class Written:
    """Stands for the copies of the parameters that a job writes: each call of `new` gives the next of
    these lists."""

    def __init__(self, *looks: list[float]) -> None:
        self._looks = list(looks)
        self._at_s = 0.0

    def new(self) -> Any:
        for value in self._looks.pop(0) if self._looks else []:
            self._at_s += 1.0
            yield self._at_s, {"x": np.asarray(value)}


def test_the_first_copy_that_has_reached_the_target_counts() -> None:
    copies: Any = Written([9.0, 8.0], [], [7.0, 3.0, 2.0])
    watch = Watch(copies, 3.5, lambda parameter: float(parameter["x"]))
    assert watch.look() is None
    assert watch.look() is None
    assert watch.look() == 4.0
    assert watch.reached_s == 4.0


def test_a_long_curve_is_thinned_and_keeps_its_end() -> None:
    watch = Watch(Written(), 0.0, lambda parameter: 0.0)  # type: ignore[arg-type]
    watch.curve = [(float(at), 1.0 / (at + 1)) for at in range(1_000)]
    thinned = watch.thinned(80)
    assert len(thinned) <= 81 and thinned[-1][0] == 999.0


# -- many runs ---------------------------------------------------------------------------------


def test_results_are_appended_and_known_runs_are_not_made_again(tmp_path: Path) -> None:
    out, specs, made = tmp_path / "out.jsonl", runs_of(["coordination"], range(2)), []

    def make(spec: Spec, max_s: float) -> dict[str, Any]:
        made.append(spec)
        return result_of(spec)

    pool = Pool(make, out, lambda line: None, 10.0)
    assert pool.work(specs[:3], 2, 60.0) == []
    assert pool.work(specs, 2, 60.0) == []
    assert len(made) == len(set(made)) == len(specs)
    assert {Spec.read(each["spec"]) for each in read_results([out])} == set(specs)


def test_no_run_begins_that_would_not_end_in_time(tmp_path: Path) -> None:
    specs = [Spec("kmeans", "bspb", SLOW_4X), Spec("kmeans", "fspv")]
    made = []

    def make(spec: Spec, max_s: float) -> dict[str, Any]:
        made.append((spec, max_s))
        return result_of(spec)

    pool = Pool(make, tmp_path / "out.jsonl", lambda line: None, 100.0)
    minutes = (expected_s(specs[1], 100.0) + 20.0) / 60
    assert pool.work(specs, 1, minutes) == specs[:1]
    ((spec, max_s),) = made
    assert spec == specs[1] and max_s <= 60 * minutes - 15.0


def test_a_run_that_fails_is_reported_and_made_again_later(tmp_path: Path) -> None:
    out, said = tmp_path / "out.jsonl", []
    (spec, *_) = runs_of(["coordination"], [0])

    def fail(spec: Spec, max_s: float) -> dict[str, Any]:
        raise OSError("no memory")

    Pool(fail, out, said.append, 10.0).work([spec], 1, 60.0)
    assert "no memory" in said[0]
    Pool(lambda spec, max_s: result_of(spec), out, said.append, 10.0).work([spec], 1, 60.0)
    (result,) = read_results([out])
    assert result["seconds"] == 5.0


# -- the page ----------------------------------------------------------------------------------


def test_a_figure_is_the_geometric_mean_over_the_starts() -> None:
    spec = Spec("kmeans", "bspb")
    runs = [result_of(spec, 2.0), result_of(replace(spec, rep=1), 8.0)]
    assert Results(runs).seconds("kmeans", "bspb") == pytest.approx(4.0)
    again = [*runs, result_of(spec, 8.0)]  # the first start has one run more than the others
    assert Results(again).seconds("kmeans", "bspb") == pytest.approx(32**0.5)
    assert Results(runs).cell("kmeans", "bspb") == "4.0"
    assert Results(runs).cell("kmeans", "bspv") == "-"


def test_a_run_that_misses_the_target_counts_with_its_limit() -> None:
    spec = Spec("kmeans", "bspb")
    found = Results([result_of(spec, None), result_of(replace(spec, rep=1), 7.5)])
    assert found.seconds("kmeans", "bspb") == pytest.approx(15.0)
    assert found.cell("kmeans", "bspb") == ">15.0"


def test_an_older_result_without_a_limit_counts_with_the_time_that_it_trained() -> None:
    old = result_of(Spec("kmeans", "bspb"), None)
    del old["limit_s"]
    assert Results([old]).cell("kmeans", "bspb") == ">9.0"


def test_a_ratio_compares_the_same_starts() -> None:
    ours, theirs = Spec("kmeans", "fspv"), Spec("kmeans", "bspv")
    found = Results(
        [
            *(result_of(replace(ours, rep=rep), 2.0 ** (rep + 1)) for rep in range(3)),
            *(result_of(replace(theirs, rep=rep), 2.0 ** (2 * rep)) for rep in range(2)),
        ]
    )
    ratio = found.ratio("kmeans", "fspv", "bspv")
    assert ratio is not None
    assert ratio.mean == pytest.approx((2.0 * 1.0) ** 0.5)
    assert ratio.error == pytest.approx(math.log(2) / 2)
    assert found.ratio("kmeans", "fspv", "fspb") is None


def test_every_policy_begins_with_the_parameters_and_the_order_of_its_start() -> None:
    for policy in ("bspb", "fspv", "interval 0.1"):
        words = command(Spec("kmeans", policy, rep=3), Path("data"), Path("out"), 9.0)
        assert words[words.index("--seed") + 1] == "3"


def test_each_start_has_a_target_of_its_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "higgs.npy", rng.normal(size=(300, 29)).astype(np.float32))
    found = [target_of(PROBLEMS["kmeans"], tmp_path, start) for start in (0, 1, 0)]
    assert found[0] == found[2] != found[1]
    assert all(target["target"] < target["first"] for target in found)


def test_a_run_that_was_cut_short_does_not_count_with_a_limit(tmp_path: Path) -> None:
    out, spec = tmp_path / "out.jsonl", Spec("kmeans", "fspv")
    made = Pool(lambda spec, max_s: result_of(spec, None), out, lambda line: None, 1.0)
    made.work([spec], 1, 60.0)
    (result,) = read_results([out])
    assert "cut short" in result["failed"]


def test_the_page_has_every_figure(tmp_path: Path) -> None:
    document = tmp_path / "docs" / "fsp.md"
    document.parent.mkdir()
    document.write_text(DOCS.read_text())
    results = [
        result_of(spec, 2.0 if "fspv" in spec.policy else 8.0) for spec in runs_of(STUDIES, [0])
    ]
    write(results, document)
    text = document.read_text()
    assert "| kmeans | 8.0 | 8.0 | 8.0 | 2.0 | 4.0x | 4.0x | 4.0x |" in text
    assert "| kmeans | 0.01 | 8.0 | 0.050 | 8.0 | +0% (± 0%) | 0.050 | 2.0 | -75% (± 0%) |" in text
    named = {
        line.split("pictures/")[1].rstrip(")")
        for line in text.splitlines()
        if "](pictures/" in line
    }
    assert named == {path.name for path in (document.parent / "pictures").iterdir()}


def test_the_cost_of_migration_is_a_median_over_the_starts() -> None:
    def run(policy: str, start: int, fast_us: float, slow_us: float) -> dict[str, Any]:
        workers = [
            {"cpu_s": 1e-6 * us * points, "points": points}
            for us, points in ((fast_us, 100), (fast_us, 300), (fast_us, 200), (slow_us, 50))
        ]
        spec = Spec("lr", policy, SLOW_4X, rep=start, hold_s=20.0)
        return result_of(spec, None, workers=workers)

    found = Results(
        [
            *(run("60 ms, off", start, us, 100.0) for start, us in enumerate((10.0, 20.0, 30.0))),
            *(run("60 ms, full", start, us, 102.0) for start, us in enumerate((10.2, 20.8, 33.0))),
            run("60 ms, lease", 0, 9.9, 101.0),
        ]
    )
    assert cost_lines(found) == [
        ["lr", "4x", "lease", "-1.0%", "+1.0%"],
        ["lr", "4x", "full", "+4.0% (+2.0% to +10.0%)", "+2.0% (+2.0% to +2.0%)"],
    ]


def test_a_page_without_results_says_so(tmp_path: Path) -> None:
    document = tmp_path / "fsp.md"
    document.write_text(DOCS.read_text())
    write([], document)
    assert document.read_text().count("Not measured yet.") == 11


def test_runs_of_different_machines_are_not_mixed(tmp_path: Path) -> None:
    document = tmp_path / "fsp.md"
    document.write_text(DOCS.read_text())
    large = [result_of(spec, 2.0) for spec in runs_of(["runtime", "migration"], [0])]
    small = [
        result_of(spec, 7.0, machine="aarch64, 2 cores, 0% of their time taken by others")
        for spec in runs_of(["migration"], range(3))
    ]
    write([*large, *small], document)
    text = document.read_text()
    assert "| kmeans | 2.0 | 2.0 | 2.0 | 2.0 | 1.0x | 1.0x | 1.0x |" in text
    assert "one of 4 workers 4x | 7.0 (1.00x)" in text
    assert "Measured on one machine (aarch64, 2 cores), from 3 starts." in text
