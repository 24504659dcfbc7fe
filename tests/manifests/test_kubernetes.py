"""Manifests for Kubernetes: its schema accepts them, they refuse what makes no sense there, and their
containers form a job that trains, changes its size and ends."""

import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import Result

from polyrhythm.errors import PolyrhythmError, UsageError
from polyrhythm.manifests.yaml_text import block, scalar
from polyrhythm.observe.journal import read_journal
from tests.cluster.processes import wait_until
from tests.commands.start import CLI, Process
from tests.manifests.containers import Containers

Call = Callable[..., Result]
VERSIONS = ("1.31", "1.34")
MINE = '''\
"""A job with text that is difficult to quote: 'quotes', "quotes", {braces}, a # and: a colon."""
import torch

DEFAULTS = {"epochs": 3}


def main(worker):
\tmodel = torch.nn.Linear(8, 4)

\toptimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
\twhile not worker.stopped:
\t\tmodel(torch.ones(2, 8)).sum().backward()
\t\toptimizer.step(points=2)
'''


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def documents(call: Call, *args: object, **env: str) -> list[dict[str, Any]]:
    told = call("manifest", "kubernetes", *args, env=env)
    assert told.exit_code == 0, told.exception
    return list(yaml.safe_load_all(told.stdout))


def of_kind(found: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    (each,) = (
        each
        for each in found
        if each["kind"] == kind and (not name or each["metadata"]["name"] == name)
    )
    return each


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--servers", 1, "--workers", 1, "--checkpoint-every", "60s"),
        ("--servers", 3, "--store", "s3://bucket/mine", "--checkpoint-every", "5min"),
        ("--resources-per-worker", "2:GPU=1,CPU=0.5", "--resources-per-worker", "CPU=4,zone=eu"),
        ("--resources-per-server", "CPU=2,memory=4e9", "--image", "registry:5000/me/mine@sha256:0"),
    ],
)
def test_the_schema_of_kubernetes_accepts_it(
    call: Call, mine: Path, flags: tuple[object, ...], version: str
) -> None:
    found = documents(call, mine, "--workers", 4, *flags)
    for each in found:
        kubernetes_validate.validate(each, version, strict=True)
    names = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert len(names) == len(set(names))


def test_the_parts_name_each_other(call: Call, mine: Path) -> None:
    found = documents(call, mine, "--servers", 3, "--workers", 4)
    secret, code = of_kind(found, "Secret"), of_kind(found, "ConfigMap")
    assert len(secret["stringData"]["secret"]) == 64
    assert code["data"] == {"mine.py": MINE}
    lead, servers = of_kind(found, "Job", "mine-lead"), of_kind(found, "StatefulSet")
    assert (
        servers["spec"]["replicas"] == 2
        and of_kind(found, "Job", "mine-worker")["spec"]["parallelism"] == 4
    )
    service, budget = of_kind(found, "Service"), of_kind(found, "PodDisruptionBudget")
    labels = lead["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels and service["metadata"]["name"] == "mine-lead"
    of_servers = servers["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"] == of_servers != labels
    for workload in (lead, servers, of_kind(found, "Job", "mine-worker")):
        secrets = [
            each["valueFrom"]["secretKeyRef"]
            for each in container_of(workload)["env"]
            if each["name"] == "POLYRHYTHM_SECRET"
        ]
        assert secrets == [{"name": secret["metadata"]["name"], "key": "secret"}]
        volumes = workload["spec"]["template"]["spec"].get("volumes", [])
        mounted = {each["name"] for each in container_of(workload).get("volumeMounts", [])}
        assert mounted == {each["name"] for each in volumes}
    assert "completions" not in of_kind(found, "Job", "mine-worker")["spec"], "so it may change"


def test_a_server_has_more_time_to_leave_than_a_worker(call: Call) -> None:
    found = documents(call, "digits", "--servers", 2)
    grace_s = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        for each in found
        if "template" in each.get("spec", {})
    }
    assert grace_s["digits-server"] >= 600 > grace_s["digits-worker"] > 30


def test_the_lead_gets_the_options_of_train_as_they_were_given(call: Call, mine: Path) -> None:
    """The command line in the manifest, read again, has the same settings. A switch that is off must
    override the DEFAULTS of the job."""
    mine.write_text(MINE.replace('"epochs": 3', '"epochs": 3, "data_private": True'))
    flags = ["--sync", "ssp:4", "--set", "a=b c", "--set", "x={}", "--max-seconds", "90s"]
    flags += ["--target", "accuracy=0.9", "--target", "f1>=0.5", "--no-data-private", "--trace"]
    found = documents(call, mine, *flags, POLYRHYTHM_KIND="gradient")
    command = container_of(of_kind(found, "Job", "mine-lead"))["command"]
    assert command[:3] == ["polyrhythm", "train", "/job/mine.py"]

    def settings(*words: object) -> dict[str, Any]:
        told = call("train", mine, *words, "--show-config", "--json")
        assert told.exit_code == 0, told.exception
        return {row["setting"]: row["value"] for row in json.loads(told.stdout)}

    expected = settings(*flags, "--kind", "gradient")
    got = settings(*command[3:])
    own = {"name", "host", "port", "insecure", "local-workers", "local-servers", "resume"}
    assert {key for key in got if got[key] != expected[key]} == own


def test_kubernetes_puts_no_variable_into_a_word(call: Call, mine: Path) -> None:
    """It would replace $(NAME) and $$ in the commands of containers."""
    found = documents(call, mine, "--set", "a=$(POLYRHYTHM_SECRET) $$")
    command = container_of(of_kind(found, "Job", "mine-lead"))["command"]
    assert "a=$$(POLYRHYTHM_SECRET) $$$$" in command


def test_a_job_with_checkpoints_continues_when_its_lead_is_started_again(call: Call) -> None:
    plain = of_kind(documents(call, "digits"), "Job", "digits-lead")
    assert plain["spec"]["backoffLimit"] == 0
    flags = ("--servers", 1, "--checkpoint-every", "60s")
    kept = of_kind(documents(call, "digits", *flags), "Job", "digits-lead")
    assert kept["spec"]["backoffLimit"] > 0 and "--resume" in container_of(kept)["command"]
    ignored = [
        rule for rule in kept["spec"]["podFailurePolicy"]["rules"] if "onPodConditions" in rule
    ]
    assert [rule["action"] for rule in ignored] == ["Ignore"]


def test_resources_and_labels_of_workers(call: Call) -> None:
    asked = ("--resources-per-worker", "1:GPU=2", "--resources-per-worker", "CPU=4,zone=eu")
    found = documents(call, "digits", "--workers", 3, *asked)
    first = of_kind(found, "Job", "digits-worker")
    assert first["spec"]["parallelism"] == 1
    assert container_of(first)["resources"] == {
        "requests": {"cpu": "1"},
        "limits": {"nvidia.com/gpu": "2"},
    }
    second = of_kind(found, "Job", "digits-worker-2")
    assert second["spec"]["parallelism"] == 2
    assert second["spec"]["template"]["spec"]["nodeSelector"] == {"zone": "eu"}
    assert {"name": "OMP_NUM_THREADS", "value": "4"} in container_of(second)["env"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--engine", "ray"], "has no --engine: the manifest starts ordinary processes"),
        (["--detach"], "has no --detach"),
        (["--local-workers", "2"], "has no --local-workers: the manifest decides where"),
        (["--host", "10.0.0.1"], "has no --host: each process listens on the address of its"),
        (["--link", "local"], "has no --link local: processes have no memory in common"),
        (["--in-place"], "has no --in-place"),
        (["--slow", "1=4x"], "has no --slow: under the manifest, workers have other names"),
        (["--runs-dir", "r"], "has no --runs-dir: runs are in the volume"),
        (["--workers", "2..8"], "--workers is 2..8: give one number"),
        (["--sync", "no"], "no"),
        (["--outer", "nesterov", "--kind", "gradient"], "--outer needs"),
        (["--name", "My_Job"], "--name 'My_Job' cannot be used in a manifest"),
        (["--checkpoint-every", "60s"], "servers on several hosts need a store that all of them"),
        (["--resources-per-worker", "GPU=0.5"], "Kubernetes accepts only whole numbers of GPU"),
        (["--resources-per-worker", "licence=1"], "such as example.com/licence"),
        (["--resources-per-worker", "9:GPU=1"], "is for 9 processes"),
        (["--resources-per-server", "1:CPU=4"], "leave the number of servers out"),
        (["--devices", "cuda:0,cuda:1"], "has no list of --devices"),
        (["--devices", "cuda"], "needs --resources-per-worker GPU=1"),
        (["--servers", "0"], "--servers is 0"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_written(
    call: Call, flags: list[str], says: str
) -> None:
    told = call("manifest", "kubernetes", "digits", *flags)
    assert isinstance(told.exception, PolyrhythmError), told.output
    assert says in str(told.exception) and "\n" not in str(told.exception)
    assert told.stdout == ""


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("kubernetes", "absent.py"), "absent.py"),
        (("nomad", "digits"), "LAUNCHER 'nomad' is not known: choose one of kubernetes"),
        (("kubernetes", "large.py"), "too large for a ConfigMap"),
        (("kubernetes", "latin.py"), "is not UTF-8 text"),
    ],
)
def test_a_job_that_cannot_be_in_a_manifest(
    call: Call, tmp_path: Path, args: tuple[str, ...], says: str
) -> None:
    (tmp_path / "large.py").write_text(f"def main(worker): ...\n# {'x' * 900_000}\n")
    (tmp_path / "latin.py").write_bytes(b"# coding: latin-1\n# \xe4\ndef main(worker): ...\n")
    told = call("manifest", *args)
    assert isinstance(told.exception, UsageError), told.output
    assert says in str(told.exception) and told.stdout == ""


@given(st.text(st.characters(codec="utf-8")) | st.text(" \t\n#:|'\"a-\r"))
def test_every_text_is_the_same_in_yaml(text: str) -> None:
    read = yaml.safe_load(f"data:\n  a: {block(text, 4)}\nb: {scalar(text)}\n")
    assert read == {"data": {"a": text}, "b": text}


def test_a_file_with_the_secret_that_others_can_read_is_reported(tmp_path: Path) -> None:
    for mode, says in ((0o644, "mine.yaml contains the secret of the job"), (0o600, "")):
        path = tmp_path / "mine.yaml"
        path.touch()
        path.chmod(mode)
        with path.open("w") as file:
            done = subprocess.run(
                [CLI, "manifest", "kubernetes", "digits"],
                stdout=file,
                stderr=subprocess.PIPE,
                text=True,
                check=True,
                timeout=60,
            )
        assert says in done.stderr and bool(says) == bool(done.stderr)
        assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_its_containers_are_a_job_that_changes_its_size_and_ends(
    call: Call, tmp_path: Path, mine: Path
) -> None:
    """Each pod's command with its environment, all at once. Then, as Kubernetes would: a server and a
    worker get SIGTERM because their node is drained, another worker starts, and the lead gets
    SIGTERM."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ("--workers", 2, "--servers", 2, "--rounds", 100_000, "--min-step", "50ms")
    found = documents(call, mine, *flags, "--port", port)
    secret = of_kind(found, "Secret")["stringData"]
    (tmp_path / "job").mkdir()
    for name, text in of_kind(found, "ConfigMap")["data"].items():
        (tmp_path / "job" / name).write_text(text)
    here = {"mine-lead:": "127.0.0.1:", "/job/": f"{tmp_path}/job/"}

    def environment(container: dict[str, Any]) -> dict[str, str]:
        return {
            each["name"]: secret[each["valueFrom"]["secretKeyRef"]["key"]]
            if "valueFrom" in each
            else each["value"]
            for each in container["env"]
        }

    with Containers(tmp_path, here) as containers:

        def start(workload: dict[str, Any]) -> Process:
            container = container_of(workload)
            place = "data" if "workingDir" in container else "home"
            return containers.start(container["command"], environment(container), tmp_path / place)

        workers = of_kind(found, "Job", "mine-worker")
        (first, _) = [start(workers) for _ in range(workers["spec"]["parallelism"])]
        server = start(of_kind(found, "StatefulSet"))
        lead = start(of_kind(found, "Job", "mine-lead"))
        run = tmp_path / "data" / "runs" / "mine"

        def noted(what: str) -> list[dict[str, Any]]:
            assert lead.poll() is None or what == "ended", containers.logs()
            path = run / "journal.jsonl"
            return (
                [line for line in read_journal(path) if line["what"] == what]
                if path.exists()
                else []
            )

        wait_until(lambda: noted("rounds"), "it trains")
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0, containers.logs()
        assert noted("drained")
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 128 + signal.SIGTERM, containers.logs()
        start(workers)
        wait_until(lambda: "2" in noted("rounds")[-1]["workers"], "another worker contributes")
        lead.send_signal(signal.SIGTERM)
        assert lead.wait(60) == 128 + signal.SIGTERM, containers.logs()
        assert (run / "model.safetensors").is_file()
        ended = [process.wait(60) for process in containers.running]
    assert sorted(ended) == [0, 0, 0, 143, 143], containers.logs()
    assert os.environ.get("POLYRHYTHM_SECRET") is None
