"""Tests that one process has collected, and that forked test processes run without collecting again.

The collecting process (`forked_tests.py`) does what a test process of xdist does, up to the end of the
collection. A test process that is forked from it takes over the configuration of pytest, the session
and the tests. It creates anew what every process needs for itself: the capture of output, the
folder for temporary files and the file for reports of crashes. Then it reports the tests to xdist
as if it had collected them itself.
"""

import gc
import os
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from _pytest import config as configuration
from _pytest.main import Session

COLLECTED = "collected"
"""The worker id of the collecting process, which runs no tests itself."""
_OF_ONE_PROCESS = ("tmpdir", "faulthandler")
"""The plugins that are configured again in every test process."""


class CollectedTests:
    """The result of a collection. `arguments`: those of pytest. `processes`: the number of test
    processes, on which the order of tests depends. If a file has an error, every test process reports
    it."""

    def __init__(self, arguments: Sequence[str], processes: int) -> None:
        self._arguments, self._processes = list(arguments), processes
        self._reports: list[pytest.CollectReport] = []
        self._prepare = configuration._prepareconfig
        self._config = config = self._prepare([*arguments], None)
        self._paths = [str(path) for path in config.getini("pythonpath")]
        as_test_process(config, processes)
        try:
            self._session = self._collected()
        except BaseException:
            config._ensure_unconfigure()
            raise
        self._plugins = config.pluginmanager.get_plugins()

    def _collected(self) -> Session:
        config = self._config
        config.pluginmanager.register(self)
        config._do_configure()
        session = Session.from_config(config)
        config.hook.pytest_sessionstart(session=session)
        config.hook.pytest_collection(session=session)
        config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
        config.pluginmanager.unregister(self)
        return session

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._reports.append(report)

    def take_over(self) -> None:
        """Let xdist take over the tests in this process, which is a fork."""
        configuration._prepareconfig = self._taken_over

    def _taken_over(self, args: list[str], plugins: Any = None) -> pytest.Config:
        """The configuration that xdist asks for."""
        configuration._prepareconfig = self._prepare
        if args != self._arguments or os.environ["PYTEST_XDIST_WORKER_COUNT"] != str(
            self._processes
        ):
            return self._prepare(args, plugins)
        for path in self._paths:
            sys.path.insert(0, path)
        config = self._config
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.start_global_capturing()
        capture.suspend_global_capture()
        Session.from_config = lambda _: self._session  # type: ignore[method-assign]
        config._do_configure = self._configure  # type: ignore[method-assign]
        self._session.perform_collect = self._collect  # type: ignore[method-assign,assignment]
        return config

    def _configure(self) -> None:
        manager = self._config.pluginmanager
        for name in _OF_ONE_PROCESS:
            plugin = manager.getplugin(name)
            if plugin is not None:
                getattr(plugin, "pytest_unconfigure", lambda _: None)(self._config)
                plugin.pytest_configure(self._config)
        self._began = self._config.hook.pytest_sessionstart
        # for all plugins that were registered before the fork, the session has begun already
        self._config.hook.pytest_sessionstart = self._for_new_plugins("pytest_sessionstart")

    def _collect(self) -> None:
        self._config.hook.pytest_sessionstart = self._began
        for report in self._reports:
            self._for_new_plugins("pytest_collectreport")(report=report)
        self._for_new_plugins("pytest_collection_finish")(session=self._session)
        gc.enable()

    def _for_new_plugins(self, hook: str) -> Any:
        """Return a function that calls this hook only in the plugins that were registered after the
        collection. These are the plugins of xdist."""
        return self._config.pluginmanager.subset_hook_caller(hook, self._plugins)


def as_test_process(config: pytest.Config, processes: int) -> None:
    """Configure pytest as xdist does in a test process."""
    from xdist.remote import setup_config

    setup_config(config, None)
    config.workerinput = {"workerid": COLLECTED, "workercount": processes}  # type: ignore[attr-defined]
