"""What this process may use of its host: cores and threads, memory, and open files and sockets
(file descriptors)."""

import contextlib
import errno
import functools
import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

from polyrhythm.errors import PolyrhythmError

_MEMBERSHIP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def usable_cores(membership: Path = _MEMBERSHIP, groups: Path = _GROUPS) -> int:
    """The number of cores that this process may use. The process may be bound to some of the
    machine's cores, or limited by the quota of a control group, as in a container.

    A quota is rounded down: 2.5 cores count as 2, because the system would stop a third thread in
    the middle of its work. Quotas are read once.
    """
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


_MEMINFO = "/proc/meminfo"
_MOST_NBYTES = 4096


def available_nbytes() -> int | None:
    """The memory that new allocations can use without swapping; None if this system does not say."""
    try:
        # The file is read unbuffered and as bytes to save time, because this runs for every chunk
        # that arrives.
        with open(_MEMINFO, "rb", buffering=0) as file:
            _, _, rest = file.read(_MOST_NBYTES).partition(b"MemAvailable:")
        return int(rest.split(None, 1)[0]) * 1024
    except (OSError, ValueError, IndexError):
        return None


_ENOUGH = 1 << 16
"""The soft limit is raised at most to this number: some programs that a user's code may start close
all descriptors up to the limit, one by one. A process of a job with 1,000 workers and 1,000 servers
needs about 8,000."""


def raise_limit() -> None:
    """Raise the soft limit of this process, and of the processes that it starts from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # some systems refuse even a value below the hard limit; the soft limit then stays
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def needed(workers: int, servers: int) -> int:
    """About how many descriptors each process of a job needs. This is generous: a third more than a
    process uses is needed to accept new members (`io/accept.py`), and the user's code opens files.

    Measured as the highest descriptor in use, every 5 ms from the start to the end of jobs with 1 to 8
    workers and 1 to 4 servers, over local links and TCP, with and without copies. A server used at most
    17 + 3 for each worker + 4 for each server; a worker and the command used fewer.
    """
    return 32 + 4 * workers + 6 * servers


def check_limit(workers: int, servers: int) -> None:
    """Raises PolyrhythmError if the processes of this job may open too few files and sockets.

    *The soft limit of a process does not matter: commands raise it to the hard limit, which the
    processes that they start inherit. If the hard limit is too low, the job does not begin.*
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    need = needed(workers, servers)
    if most != resource.RLIM_INFINITY and most < need:
        raise PolyrhythmError(
            f"a process may open {most} files and sockets here (ulimit -n), and a job of {workers}"
            f" workers and {servers} servers needs about {need}: run 'ulimit -n {need}' before this"
            " command, as root if it is refused or in a new shell, or use fewer workers and servers"
        )


def none_left(error: BaseException) -> bool:
    """Whether this error says that the process has opened as many files and sockets as it may."""
    return isinstance(error, OSError) and error.errno == errno.EMFILE


def any_left() -> bool:
    """Whether this process may open one more file or socket."""
    try:
        fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    os.close(fd)
    return True


def too_few() -> str:
    """What to tell the user when a process has too few descriptors."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"this process may open {most} files and sockets, and too few of them are free: raise the"
        " limit (ulimit -n) before it is started, or use fewer workers and servers"
    )
