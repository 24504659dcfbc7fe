"""The number of cores that a process may use, which can be smaller than the number of cores of the
machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyrhythm.io.limits import usable_cores

_OF_ONE_KIND = Path("/sys/fs/cgroup/cpu")


def groups(tmp_path: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        file = tmp_path / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "membership", tmp_path / "groups"


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)


def test_a_process_bound_to_one_core_uses_one() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {}, 16),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 16),
        ("0::/\n", {"cpu.max": "400000 100000\n"}, 4),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
        ("0::/not/here\n", {"cpu.max": "200000 100000\n"}, 2),
        (
            "4:cpuacct,cpu:/a\n0::/\n",
            {"cpu/a/cpu.cfs_quota_us": "500000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            5,
        ),
        (
            "4:cpu:/a\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            16,
        ),
        (
            "3:cpuset:/a\n",
            {"cpu/a/cpu.cfs_quota_us": "500000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            16,
        ),
        (
            "4:cpu,cpuacct:/a\n",
            {
                "cpu,cpuacct/a/cpu.cfs_quota_us": "500000\n",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            },
            5,
        ),
        ("0::/a\n", {"unified/a/cpu.max": "200000 100000\n"}, 2),
        ("0::/../..\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "\n"}, 16),
        ("0::/\n", {"cpu.max": "200000 0\n"}, 16),
        ("no group\n\n0::/\n", {"cpu.max": "200000 100000\n"}, 2),
    ],
)
def test_quotas_of_control_groups_limit_the_cores(
    tmp_path: Path, membership: str, files: dict[str, str], cores: int
) -> None:
    assert usable_cores(*groups(tmp_path, membership, files)) == cores


@pytest.mark.usefixtures("many")
def test_cores_are_counted_without_control_groups(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "membership", tmp_path) == 16


@pytest.fixture
def one_core_group() -> Iterator[Path]:
    group = _OF_ONE_KIND / f"polyrhythm-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        (group / "cpu.cfs_quota_us").write_text("100000")
        yield group
    finally:
        group.rmdir()


def test_the_quota_of_a_real_control_group_is_read(one_core_group: Path) -> None:
    program = (
        "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()));"
        "from polyrhythm.io.limits import usable_cores; print(usable_cores())"
    )
    command = [sys.executable, "-c", program, str(one_core_group / "cgroup.procs")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "1\n"
