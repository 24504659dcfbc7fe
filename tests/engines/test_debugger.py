"""A debugger is found on the stack of a thread, whatever other threads do meanwhile."""

import bdb
import threading

from polyrhythm.engines.inline import in_debugger


def test_a_thread_in_a_debugger_is_found() -> None:
    reached, leave = threading.Event(), threading.Event()

    def wait() -> None:
        reached.set()
        leave.wait(60)

    debugged = threading.Thread(target=lambda: bdb.Bdb().runcall(wait))
    debugged.start()
    assert reached.wait(60)
    assert in_debugger([debugged])
    assert not in_debugger([threading.main_thread()])
    leave.set()
    debugged.join(60)
    assert not in_debugger([debugged])


def test_threads_that_run_are_looked_at_without_harm() -> None:
    """The stacks of the other threads grow and shrink all the time, and contain frames of
    generators."""
    stop = threading.Event()

    def deep(depth: int) -> object:
        yield from deep(depth - 1) if depth else iter((1, 2))

    def run() -> None:
        while not stop.is_set():
            list(deep(20))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert not any(in_debugger(threads) for _ in range(50))
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
