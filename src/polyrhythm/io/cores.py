"""How many cores this process may use: fewer than the machine has if the process is bound to some
of them, or if a control group limits it, as in a container. How many threads the user or the
launcher allows it."""

import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

_MEMBERSHIP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def usable_cores(membership: Path = _MEMBERSHIP, groups: Path = _GROUPS) -> int:
    """The number of usable cores, rounded down: a quota of 2.5 cores counts as 2, because the
    system would stop a third thread in the middle of its work. The quotas are read once."""
    bound = getattr(os, "sched_getaffinity", None)
    cores = (os.cpu_count() or 1) if bound is None else len(bound(0))
    return max(1, int(min([cores, *_all_quotas(membership, groups)])))


def allowed_threads(environ: Mapping[str, str]) -> int | None:
    """The most threads that the variables of OpenMP and MKL allow; None if they say nothing. OpenMP
    ignores a value that is not a positive number. A list has a number for each level of nesting; torch
    uses the first."""
    firsts = (environ.get(name, "").split(",")[0].strip() for name in _LIMITS)
    return min((int(first) for first in firsts if first.isdecimal() and int(first)), default=None)


@functools.cache
def _all_quotas(membership: Path, groups: Path) -> tuple[float, ...]:
    return tuple(_quotas(membership, groups))


def _quotas(membership: Path, groups: Path) -> Iterator[float]:
    """The quotas, in cores, of this process's control group and of all groups above it (cgroups v1
    and v2)."""
    for line in _words(membership, "\n"):
        match line.split(":", 2):
            case [_, "", path]:
                for group in _upwards((groups, groups / "unified"), path):
                    yield from _quota(group / "cpu.max")
            case [_, kinds, path] if "cpu" in kinds.split(","):
                for group in _upwards((groups / "cpu", groups / kinds), path):
                    yield from _quota(group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")


def _upwards(roots: tuple[Path, ...], path: str) -> Iterator[Path]:
    """The folders of a control group and of all groups above it. In a container, the root may be
    the container's own group; folders below it then do not exist."""
    for root in roots:
        group = root / path.lstrip("/")
        while group != root:
            yield group
            group = group.parent
        yield root


def _quota(*files: Path) -> Iterator[float]:
    match [word for file in files for word in _words(file)]:
        case [quota, period] if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)


def _words(file: Path, separator: str | None = None) -> list[str]:
    """The words of a file; none if it cannot be read, which means that there is no quota."""
    try:
        text = file.read_text()
    except OSError:
        return []
    return [word for word in text.split(separator) if word.strip()]
