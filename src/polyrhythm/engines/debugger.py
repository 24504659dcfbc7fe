"""Whether a thread has stopped at the prompt of a debugger.

*The stack of a thread that runs must not be walked frame by frame in Python: the thread may go on
between two frames, and the interpreter then reads frames that are gone (CPython 3.11 crashes).
`faulthandler` writes all stacks while no other thread can run.*
"""

import bdb
import faulthandler
import os
import re
import threading
from collections.abc import Iterable

_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)", re.MULTILINE)


def in_debugger(threads: Iterable[threading.Thread]) -> bool:
    """Whether one of these threads is in a debugger (pdb, or one that is built on it)."""
    wanted = {thread.ident for thread in threads}
    # `split` returns the text before the first thread, then the identity and the stack of each
    # thread
    _, *found = _THREAD.split(_stacks())
    pairs = zip(found[::2], found[1::2], strict=True)
    return any(int(ident, 16) in wanted and bdb.__file__ in stack for ident, stack in pairs)


def _stacks() -> str:
    """The stacks of all threads of this process."""
    file = os.memfd_create("stacks")
    try:
        faulthandler.dump_traceback(file, all_threads=True)
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
    finally:
        os.close(file)
