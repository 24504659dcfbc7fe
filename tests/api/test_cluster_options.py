"""The options of a job on a Ray cluster: what they ask for, and where they are refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.api.hosts import Here
from polyrhythm.api.training import train
from polyrhythm.api.values import demands, least_workers
from polyrhythm.engines.choice import RAY, choose_engine
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec


def test_demands_may_be_a_text_a_list_or_a_dict() -> None:
    assert demands("CPU=2,GPU=1") == ("CPU=2,GPU=1",)
    assert demands(["CPU=2", "1:GPU=1"]) == ("CPU=2", "1:GPU=1")
    assert demands({"CPU": 2, "region": "eu"}) == ("CPU=2,region=eu",)
    assert demands(None) == ()


def test_a_job_that_begins_with_few_workers_asks_for_all_of_them() -> None:
    assert least_workers("2..8") == 2
    job = JobSpec(job="j", workers=2)
    assert Here.of(job, None, None, 8).workers == 8
    assert Here.of(job, None, 5, 8).workers == 5
    with pytest.raises(UsageError, match="--local-workers is 9: give 0 to 8"):
        Here.of(job, None, 9, 8)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": "2..8"}, "--workers with two numbers needs --engine ray"),
        ({"workers": "2..8", "engine": "inline"}, "with --engine inline give one number"),
        ({"workers": "some"}, "--workers is 'some': give a number, or two in a text"),
        (
            {"address": "auto"},
            "--address needs --engine ray: with --engine local there is no cluster",
        ),
        ({"resources_per_worker": "GPU=1"}, "--resources-per-worker needs --engine ray"),
        ({"resources_per_server": {"CPU": 2}}, "--resources-per-server needs --engine ray"),
        ({"detach": True}, "--detach needs --engine ray"),
        (
            {"engine": RAY, "detach": True, "address": "local"},
            "--detach and --address local contradict each other",
        ),
        ({"engine": RAY, "resources_per_worker": "GPU"}, "'GPU' is not understood"),
        ({"engine": RAY, "host": "10.0.0.1"}, "--host and --engine ray contradict each other"),
        (
            {"engine": RAY, "checkpoint_every": "60s"},
            "servers on several hosts need a store that all of them can reach",
        ),
    ],
)
def test_options_that_contradict_the_engine_are_refused(
    options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=says):
        train("digits", quiet=True, runs_dir=tmp_path, **options)
    assert not list(tmp_path.iterdir()), "a job that is refused leaves no folder"


def test_without_ray_one_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"not installed: run pip install 'polyrhythm\[ray\]'"):
        choose_engine(RAY)


def test_importing_polyrhythm_does_not_import_ray() -> None:
    modules = "polyrhythm, polyrhythm.api.training, polyrhythm.cli.main"
    code = f"import sys, {modules}; print('ray' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "False"
