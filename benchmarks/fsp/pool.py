"""Makes several runs side by side within a time limit, and appends each result to a file as one line
of JSON. Runs that the file has already are not made again, so an interrupted measurement can go on."""

import json
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.fsp.specs import Spec

Make = Callable[[Spec, float], dict[str, Any]]
"""Makes a run that trains at most for this many seconds."""

_START_S = 15.0
"""The seconds that the start and the end of a run take."""


def read_results(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The results of several files. If a run occurs twice in a file, its last result counts, unless
    that result is a failure. Runs of different files are repetitions of each other."""
    every: list[dict[str, Any]] = []
    for path in paths:
        found: dict[Spec, dict[str, Any]] = {}
        for line in path.read_text().splitlines():
            result = json.loads(line)
            spec = Spec.read(result["spec"])
            if spec not in found or "failed" not in result:
                found[spec] = result
        every += found.values()
    return every


def expected_s(spec: Spec, limit_s: float) -> float:
    """About how long a run trains. Under `bspb` a run trains longest, at the speed of its slowest
    worker."""
    if spec.hold_s:
        return spec.hold_s
    slowest = max((factor for _, factor in spec.slow), default=1.0)
    if spec.policy == "bspb":
        return min(limit_s, spec.of.passes * spec.pass_s * slowest * 1.1)
    if spec.policy.startswith("asp"):
        return limit_s
    return min(
        limit_s, 0.5 * spec.of.passes * spec.pass_s * (slowest if "bsp" in spec.policy else 1)
    )


class Pool:
    def __init__(self, make: Make, out: Path, say: Callable[[str], None], limit_s: float) -> None:
        """`limit_s`: how long one run trains at most."""
        self._make = make
        self._out = out
        self._say = say
        self._limit_s = limit_s
        self._lock = threading.Lock()

    def work(self, specs: Iterable[Spec], parallel: int, minutes: float) -> list[Spec]:
        """Make the runs, `parallel` at a time. No run begins if it would end later than `minutes` from
        now. Of the runs with the same starting point, the longest are made first. Returns the runs that
        were not made."""
        ends_s = time.monotonic() + 60 * minutes
        known = set()
        if self._out.exists():
            results = read_results([self._out])
            known = {Spec.read(each["spec"]) for each in results if "failed" not in each}
        todo = [spec for spec in specs if spec not in known]
        todo.sort(key=lambda spec: (spec.rep, -expected_s(spec, self._limit_s)))
        skipped: list[Spec] = []

        def next_spec() -> tuple[Spec, float] | None:
            with self._lock:
                while todo:
                    spec = todo.pop(0)
                    left_s = ends_s - time.monotonic() - _START_S
                    if left_s >= expected_s(spec, self._limit_s):
                        return spec, min(self._limit_s, spec.most_s, left_s)
                    skipped.append(spec)
            return None

        def serve() -> None:
            while (found := next_spec()) is not None:
                self._one(*found)

        threads = [threading.Thread(target=serve) for _ in range(parallel)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return skipped

    def _one(self, spec: Spec, max_s: float) -> None:
        began_s = time.monotonic()
        try:
            result = self._make(spec, max_s)
        except Exception as error:  # an exception in one run must not end the other runs
            result = {"spec": spec.described, "failed": f"{type(error).__name__}: {error}"}
        took_s = time.monotonic() - began_s
        if "failed" not in result and result["seconds"] is None and max_s < spec.most_s:
            result = {"spec": spec.described, "failed": f"it was cut short after {max_s:.0f} s"}
        with self._lock:
            with self._out.open("a") as file:
                file.write(json.dumps(result) + "\n")
            told = result.get("failed") or f"{result['seconds']} s to the target"
            self._say(f"{spec.name}: {told} (the run took {took_s:.0f} s)")
