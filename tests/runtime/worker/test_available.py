"""The available memory of this host is the number that the kernel reports."""

from pathlib import Path

import pytest

from polyrhythm.io import limits as available
from polyrhythm.io.limits import available_nbytes


def test_the_available_memory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "meminfo"
    monkeypatch.setattr(available, "_MEMINFO", str(path))
    path.write_text(
        "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    2000 kB\nBuffers: 7 kB\n"
    )
    assert available_nbytes() == 2000 * 1024


@pytest.mark.parametrize("text", [None, "", "MemTotal: 9000 kB\n", "MemAvailable: many kB\n"])
def test_a_host_that_does_not_say_how_much_memory_is_available(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "meminfo"
    monkeypatch.setattr(available, "_MEMINFO", str(path))
    if text is not None:
        path.write_text(text)
    assert available_nbytes() is None
