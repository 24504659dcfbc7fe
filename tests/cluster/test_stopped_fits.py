"""Signals during a fit: the signal has its usual effect, and nothing of the fit is left."""

import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("sklearn", minversion="1.6")

from tests.cluster.processes import wait_until
from tests.commands.start import start_script

FIT = """
import signal
import numpy as np
from polyrhythm.cluster import KMeans

HANDLER
points = np.random.default_rng(0).normal(size=(100_000, 20))
KMeans(64, WORKERS, tol=0.0, max_iter=1_000_000, random_state=0, verbose=1).fit(points)
print("the fit has returned")
"""
KEPT = "signal.signal(signal.SIGTERM, lambda *_: print('kept'))"


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize(
    ("number", "handler", "status", "said"),
    [
        (signal.SIGTERM, "", -signal.SIGTERM, ""),
        (signal.SIGINT, "", -signal.SIGINT, "KeyboardInterrupt"),
        (signal.SIGTERM, KEPT, -signal.SIGINT, "KeyboardInterrupt: .* was stopped by SIGTERM"),
    ],
    ids=["SIGTERM", "SIGINT", "a handler that returns"],
)
def test_a_signal_that_stops_a_fit_has_its_usual_effect(
    number: signal.Signals,
    handler: str,
    status: int,
    said: str,
    workers: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script, output = tmp_path / "fit.py", tmp_path / "output.txt"
    script.write_text(FIT.replace("HANDLER", handler).replace("WORKERS", f"workers={workers}"))
    with output.open("w") as file:
        process = start_script(script, cwd=tmp_path, stdout=file, stderr=file)
        try:
            wait_until(lambda: re.search("pass 1|round 1 opened", output.read_text()), "a pass")
            process.send_signal(number)
            assert process.wait(60) == status
        finally:
            process.kill()
            process.wait(30)
    text = output.read_text()
    assert "the fit has returned" not in text
    assert re.search(said, text), text
    assert ("kept" in text) == bool(handler)
    # a job that has ended before its command could say that it is stopping only says why it ended
    stops = (f"stopping after {number.name}", "the job ended: stopped on request")
    assert workers is None or any(words in text for words in stops)
    assert not list(tmp_path.glob("polyrhythm-fit-*"))
