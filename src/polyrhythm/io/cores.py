"""How many cores this process may use: fewer than the machine has where it is bound to some of them, or
a control group has a quota, as in containers."""

import os
from collections.abc import Iterator
from pathlib import Path

_MEMBERSHIP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def usable_cores(membership: Path = _MEMBERSHIP, groups: Path = _GROUPS) -> int:
    """Whole ones: a thread for a part of a core would be stopped in the middle of its work."""
    bound = getattr(os, "sched_getaffinity", None)
    cores = (os.cpu_count() or 1) if bound is None else len(bound(0))
    return max(1, int(min([cores, *_quotas(membership, groups)])))


def _quotas(membership: Path, groups: Path) -> Iterator[float]:
    """Of this process's group and of those that it is part of, by both versions of control groups."""
    if not membership.exists():
        return
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for group in _upwards(groups, path):
                yield from _quota((group / "cpu.max",))
        elif "cpu" in controllers.split(","):
            for group in _upwards(groups / "cpu", path):
                yield from _quota((group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us"))


def _upwards(root: Path, path: str) -> Iterator[Path]:
    """A container may see its own group as the root, and a path that is not there."""
    group = root / path.lstrip("/")
    while group != root:
        yield group
        group = group.parent
    yield root


def _quota(files: tuple[Path, ...]) -> Iterator[float]:
    if all(file.exists() for file in files):
        quota, period = " ".join(file.read_text() for file in files).split()
        if quota not in ("max", "-1"):
            yield int(quota) / int(period)
