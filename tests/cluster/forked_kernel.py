"""Runs the kernel of Jupyter in a process that the warm server forks.

    python tests/cluster/forked_kernel.py KERNEL ARGUMENTS

When the kernel starts a job, it has threads and has run computations, so a process that is forked
from it then would hang. Therefore the kernel has a spare child from its start, which becomes the
fork server of its job.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> int:
    given = dict(os.environ)
    sys.path[0] = str(ROOT)
    from tests.commands.start import WarmCommand

    kernel = WarmCommand(
        sys.argv[1:],
        cwd=Path.cwd(),
        env=given,
        stdin=None,
        stdout=None,
        stderr=None,
        start_new_session=False,
        spares=1,
        script=True,
    )
    status = kernel.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
