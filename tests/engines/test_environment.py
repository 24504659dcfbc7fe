"""The environment variables of the processes of a job."""

import subprocess
import sys

import pytest

from polyrhythm.engines.environment import environment

POLICY = "OMP_WAIT_POLICY"


@pytest.fixture(autouse=True)
def _unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(POLICY, raising=False)


def test_idle_threads_sleep_if_workers_have_one_thread() -> None:
    assert environment([1, 1])[POLICY] == "passive"
    assert environment([])[POLICY] == "passive"


def test_the_wait_policy_is_unset_if_workers_have_several_threads() -> None:
    assert POLICY not in environment([4, 4])


def test_variables_that_the_user_has_set_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POLICY, "active")
    assert environment([1])[POLICY] == "active"


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_idle_threads_of_a_standalone_server_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment variable must be set before torch is imported, because OpenMP reads it only
    once."""
    monkeypatch.setenv("OMP_DISPLAY_ENV", "verbose")
    monkeypatch.setenv("POLYRHYTHM_SECRET", "5" * 64)
    assert _spins_of_a_server().endswith(" = '0'")
    monkeypatch.setenv(POLICY, "active")
    assert not _spins_of_a_server().endswith(" = '0'")


def _spins_of_a_server() -> str:
    """The line of OpenMP that says how long an idle thread of a server spins."""
    program = [sys.executable, "-m", "polyrhythm", "server", "--connect", "127.0.0.1:1"]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "GOMP_SPINCOUNT" in line:
                # end the process now: the line is printed long before the import of torch is
                # complete
                process.kill()
                return line.rstrip()
            if "could not reach lead" in line:
                pytest.skip("this torch's OpenMP does not say how long it spins")
    raise AssertionError("the server ended before it used torch")
