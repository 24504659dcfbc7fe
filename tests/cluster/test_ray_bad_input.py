"""Jobs on a Ray cluster that cannot run, and jobs in a session of Ray that the user has begun."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import polyrhythm as pr
from polyrhythm.engines.choice import RAY
from tests.cluster.ray_jobs import HEAVY, Run, nothing_is_left
from tests.ray_cluster import RayCluster

pytestmark = [pytest.mark.cluster, pytest.mark.ray, pytest.mark.timeout(300, func_only=True)]

SOURCE = Path(pr.__file__).parents[1]


@contextmanager
def session(cluster: RayCluster, **how: Any) -> Iterator[None]:
    """A session of Ray that this process has begun itself."""
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    ray.init(cluster.address, log_to_driver=False, logging_level="critical", **how)
    try:
        yield
        assert ray.is_initialized(), "a job does not end the session in which it runs"
    finally:
        ray.shutdown()
        # settings of this process that Ray leaves behind
        os.environ.pop("PYTHONBREAKPOINT", None)
        signal.signal(signal.SIGTERM, handler)


def without(module: str, folder: Path) -> dict[str, Any]:
    """A runtime environment in which this module is missing on every node."""
    (folder / f"{module}.py").write_text(
        f'raise ModuleNotFoundError("No module named {module!r}")\n'
    )
    return {"env_vars": {"PYTHONPATH": f"{folder}:{SOURCE}"}}


@pytest.mark.parametrize("module", ["torch", pytest.param("polyrhythm", marks=HEAVY)])
def test_a_library_that_a_node_does_not_have_ends_the_job_with_one_line(
    ray_cluster: RayCluster, tmp_path: Path, module: str
) -> None:
    with (
        session(ray_cluster, runtime_env=without(module, tmp_path)),
        pytest.raises(pr.errors.PolyrhythmError) as error,
    ):
        pr.train("digits", engine=RAY, workers=1, servers=1, runs_dir=tmp_path / "runs", quiet=True)
    assert f"No module named '{module}'" in str(error.value)
    assert "install it on every node, or send it along" in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists(), "a job that has not begun leaves no folder"
    nothing_is_left(ray_cluster)


def test_a_module_that_only_the_command_has_is_named_with_the_node(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    job = tmp_path / "mine.py"
    job.write_text("import beside\n\n\ndef main(worker):\n    pass\n")
    with (
        session(ray_cluster, runtime_env=without("beside", tmp_path)),
        pytest.raises(pr.errors.JobFailed) as error,
    ):
        pr.train(job, engine=RAY, workers=1, servers=1, runs_dir=tmp_path / "runs", quiet=True)
    first = str(error.value).partition("\n")[0]
    assert "worker-0 failed: ModuleNotFoundError: No module named 'beside' (node " in first
    assert "send it along with 'ray job submit --working-dir'" in first
    nothing_is_left(ray_cluster)


@HEAVY
def test_two_jobs_of_one_name_run_in_one_session(ray_cluster: RayCluster, tmp_path: Path) -> None:
    """The second job runs while the first one trains. Another address than that of the session is
    refused."""
    runs = [Run(tmp_path / where / "mine", ray_cluster) for where in ("one", "other")]
    for run in runs:
        run.folder.mkdir(parents=True)
    first, second = runs
    ended: list[str | None] = []

    def run_the_other() -> None:
        outcome = second.run([(lambda: second.lines("rounds"), lambda: None)], workers=1, servers=1)
        ended.append(outcome.failed or outcome.ended)

    with session(ray_cluster, namespace="theirs"):
        outcome = first.run([(lambda: first.lines("rounds"), run_the_other)], workers=1, servers=1)
        with pytest.raises(pr.errors.UsageError, match="has joined the Ray cluster at .* already"):
            pr.train("digits", engine=RAY, address="127.0.0.1:1", runs_dir=tmp_path, quiet=True)
    assert ended == ["stopped on request"] and outcome.ended == ended[0], first.said + second.said
    nothing_is_left(ray_cluster)


@pytest.mark.parametrize(
    "asked",
    [
        {"resources_per_worker": {"GPU": 1.5}},
        {"resources_per_server": {"CPU": 0.00001}},
        {"resources_per_server": {"zone": "!!"}},
    ],
)
def test_amounts_and_labels_that_ray_refuses_are_an_error_of_one_line(
    ray_cluster: RayCluster, tmp_path: Path, asked: dict[str, Any]
) -> None:
    with pytest.raises(pr.errors.UsageError) as error:
        pr.train(
            "digits",
            engine=RAY,
            address=ray_cluster.address,
            runs_dir=tmp_path / "runs",
            quiet=True,
            **asked,
        )
    assert str(error.value).startswith("Ray refuses what the processes ask for: ")
    nothing_is_left(ray_cluster)
