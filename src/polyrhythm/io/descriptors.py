"""How many files and sockets (file descriptors) a process of a job may open, and how many it needs.

*The soft limit of a process does not matter: commands raise it to the hard limit, which the
processes that they start inherit. If the hard limit is too low, the job does not begin.*
"""

import contextlib
import errno
import os
import resource

from polyrhythm.errors import PolyrhythmError

_ENOUGH = 1 << 16
"""The soft limit is not raised further, because some programs that a user's code may start close all
descriptors up to the limit, one by one. A process of a job with 1,000 workers and 1,000 servers
needs about 8,000."""


def raise_limit() -> None:
    """Raise the soft limit of this process, and of the processes that it starts from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # some systems have a limit below the hard one; the soft limit stays as it is then
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
    """Raises PolyrhythmError if the processes of this job may open too few files and sockets."""
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
    """What to tell the user when a process has no descriptor left, or too few."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"this process may open {most} files and sockets, and too few of them are free: raise the"
        " limit (ulimit -n) before it is started, or use fewer workers and servers"
    )
