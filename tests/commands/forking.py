"""The pytest hooks with which xdist forks its test processes (`forked_tests.py`)."""

from typing import Any

import pytest

from tests.commands.forked_tests import CollectedProcess, fork_test_processes

_collected: list[CollectedProcess] = []


@pytest.hookimpl(optionalhook=True)  # without xdist pytest does not know this hook
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Fork the test processes from one process that has collected the tests."""
    if len(specs) > 1:
        _collected.append(fork_test_processes(config.invocation_params.args, len(specs)))


def pytest_unconfigure() -> None:
    while _collected:
        _collected.pop().close()
