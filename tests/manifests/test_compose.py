"""Files for Docker Compose, and the Dockerfile: Compose accepts them, and the containers form a job."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from polyrhythm.errors import PolyrhythmError
from tests.cluster.processes import wait_until
from tests.manifests.containers import Containers
from tools.newcomer import ROOT

Call = Callable[..., Result]
COMPOSE = shutil.which("docker-compose")


def written(call: Call, *args: object) -> tuple[str, dict[str, Any]]:
    told = call("manifest", "compose", *args)
    assert told.exit_code == 0, told.exception
    return told.stdout, yaml.safe_load(told.stdout)


@pytest.mark.skipif(COMPOSE is None, reason="the program docker-compose is not installed")
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--checkpoint-every", "60s", "--set", "a=$HOME ${x}"),
        ("--resources-per-worker", "1:GPU=1", "--resources-per-worker", "CPU=2"),
    ],
)
def test_compose_accepts_it_and_reads_the_commands_as_they_are(
    call: Call, tmp_path: Path, flags: tuple[object, ...]
) -> None:
    assert COMPOSE is not None
    (tmp_path / "mine.py").write_text("def main(worker): ...\n")
    text, _ = written(call, "mine.py", "--epochs", 2, *flags)
    # version 1 of Compose takes the name of the project from the command line only
    (tmp_path / "c.yaml").write_text(re.sub(r"(?m)^name: .*\n", "", text))
    done = subprocess.run(
        [COMPOSE, "-f", "c.yaml", "-p", "mine", "config"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lead = yaml.safe_load(done.stdout)["services"]["lead"]
    # what `config` prints can be read by Compose again, so a dollar sign is doubled
    command = [word.replace("$$", "$") for word in lead["command"]]
    assert ("--set" in flags) == ("a=$HOME ${x}" in command)


def test_compose_puts_no_variable_into_the_secret(call: Call) -> None:
    told = call("manifest", "compose", "digits", env={"POLYRHYTHM_SECRET": "a-$HOME-" * 8})
    lead = yaml.safe_load(told.stdout)["services"]["lead"]
    assert lead["environment"]["POLYRHYTHM_SECRET"] == "a-$$HOME-" * 8


def test_the_workers_are_one_service_for_each_demand(call: Call) -> None:
    asked = ("--resources-per-worker", "1:GPU=2", "--resources-per-worker", "CPU=4")
    _, found = written(call, "digits", "--workers", 3, *asked)
    services = found["services"]
    assert services.keys() == {"lead", "worker", "worker-2"}
    assert services["worker"]["deploy"]["replicas"] == 1
    (device,) = services["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["count"] == 2
    assert services["worker-2"]["deploy"] == {"replicas": 2}
    assert services["worker-2"]["environment"]["OMP_NUM_THREADS"] == "4"


def test_the_lead_is_started_again_only_if_the_job_can_continue(call: Call) -> None:
    assert written(call, "digits")[1]["services"]["lead"]["restart"] == "no"
    kept = written(call, "digits", "--checkpoint-every", "60s")[1]["services"]["lead"]
    assert kept["restart"] == "on-failure" and "--resume" in kept["command"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--host", "10.0.0.1"], "has no --host"),
        (["--resources-per-server", "CPU=2"], "all servers are in one container"),
        (["--resources-per-worker", "zone=eu"], "runs on one machine"),
        (["--resources-per-worker", "GPU=0.5"], "whole numbers of GPU"),
        (["--resources-per-worker", "licence=1"], "Docker Compose knows only CPU"),
        (["--devices", "cuda:0,cuda:1"], "has no list of --devices"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Call, flags: list[str], says: str) -> None:
    told = call("manifest", "compose", "digits", *flags)
    assert isinstance(told.exception, PolyrhythmError), told.output
    assert says in str(told.exception) and told.stdout == ""


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_its_containers_are_a_job_that_stops_in_order(call: Call, tmp_path: Path) -> None:
    """`docker compose stop` sends SIGTERM to all containers at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ("--workers", 2, "--servers", 2, "--rounds", 100_000, "--min-step", "50ms")
    _, found = written(call, "digits", *flags, "--port", port)
    with Containers(tmp_path, {"lead:": "127.0.0.1:"}) as containers:
        for service in (found["services"][name] for name in ("worker", "lead")):
            place = tmp_path / ("data" if "working_dir" in service else "home")
            for _ in range(service.get("deploy", {}).get("replicas", 1)):
                containers.start(service["command"], service["environment"], place)
        lead = containers.running[-1]

        def trains() -> bool:
            assert lead.poll() is None, containers.logs()
            return "round 1 opened with 2 workers" in containers.log(2).read_text()

        wait_until(trains, "it trains")
        for process in containers.running:
            process.send_signal(signal.SIGTERM)
        ended = [process.wait(60) for process in containers.running]
    assert ended == [143, 143, 143], containers.logs()
    assert (tmp_path / "data" / "runs" / "digits" / "model.safetensors").is_file()


def test_the_image_has_all_that_a_wheel_needs_and_nothing_that_is_not_in_a_clone(
    tmp_path: Path,
) -> None:
    """The files that the Dockerfile copies are enough to build the package."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in copied} == {line for line in allowed if line.startswith("!")}
    tracked = subprocess.run(
        ["git", "ls-files", *copied], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in tracked:
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "src" / name)
    assert {name.partition("/")[0] for name in tracked} == set(copied)
    built = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*built, "--no-index", "-w", "out", "./src"],
        cwd=tmp_path,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "out").glob("polyrhythm-*.whl"))


def test_the_image_has_the_user_and_the_folder_that_manifests_expect(call: Call) -> None:
    image = (ROOT / "Dockerfile").read_text()
    kubernetes = call("manifest", "kubernetes", "digits").stdout
    assert "USER 1000:1000" in image and "runAsUser: 1000, runAsGroup: 1000" in kubernetes
    assert "WORKDIR /data" in image and "workingDir: /data" in kubernetes
    assert written(call, "digits")[1]["services"]["lead"]["working_dir"] == "/data"
