"""`polyrhythm.simulate` and `polyrhythm.runs`."""

from pathlib import Path

import pytest

import polyrhythm as pr

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def test_a_simulation_returns_its_result_and_runs_lists_it(tmp_path: Path) -> None:
    scenario = SCENARIOS / "straggler.toml"
    result = pr.simulate(scenario, seed=1, quiet=True, name="one", runs_dir=tmp_path)
    again = pr.simulate(str(scenario), seed=1, quiet=True, name="two", runs_dir=str(tmp_path))
    assert result.run == tmp_path / "one"
    assert result.history and result.history == again.history
    assert result.status == "ended" and not result.stopped
    with pytest.raises(pr.errors.StoreError, match="run one has no model.safetensors"):
        result.state_dict()
    listed = pr.runs(tmp_path)
    assert [each.run.name for each in listed] == ["one", "two"]
    assert [each.status for each in listed] == ["ended", "ended"]
    assert listed[0].summary == result.summary and listed[0].metrics == result.metrics


def test_a_folder_without_runs_has_no_results(tmp_path: Path) -> None:
    assert pr.runs(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sed": 1}, "simulate has no option 'sed': the nearest is 'seed'"),
        ({"seed": -1}, "--seed is -1: it must be at least 0"),
        ({}, "give a scenario, or --from-run with a recorded run"),
    ],
)
def test_wrong_options_of_a_simulation_are_refused(
    tmp_path: Path, options: dict[str, int], message: str
) -> None:
    scenario = SCENARIOS / "straggler.toml" if options else None
    with pytest.raises(pr.errors.UsageError) as caught:
        pr.simulate(scenario, runs_dir=tmp_path / "runs", **options)  # type: ignore[arg-type]
    assert str(caught.value) == message
    assert list(tmp_path.iterdir()) == []
