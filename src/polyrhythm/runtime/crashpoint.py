"""Points at which a test can kill a process.

A server can be killed just after it has received or sent a message, just before and after it writes
an object to a store, and just before and after it reports its address to the command that started
it. A worker can be killed between two batches, and after it has sent or received points of a moving
chunk.

The points do nothing unless POLYRHYTHM_CRASH_AT names a file when the process starts. While that
file contains, for example, `s1 sent Placed`, s1 kills itself after it has sent its next `Placed`.
It removes the file first, so that it is killed only once. If POLYRHYTHM_CRASH_AGAIN is set, the
file stays.
"""

import os
import signal

ON = False
_file = ""
_again = False


def arm() -> None:
    """Read the environment. Every process of a job calls this when it starts."""
    global ON, _file, _again
    _file = os.environ.get("POLYRHYTHM_CRASH_AT", "")
    _again = bool(os.environ.get("POLYRHYTHM_CRASH_AGAIN"))
    ON = bool(_file)


def reach(who: str, did: str, message: object) -> None:
    """Kill this process if the file contains its name, `did` (such as `sent`) and the type of the
    message."""
    if ON:
        reach_step(who, did, type(message).__name__)


def reach_step(who: str, did: str, what: str) -> None:
    """Kill this process if the file contains the words `who`, `did` and `what`."""
    if not ON:
        return
    try:
        with open(_file) as file:
            wanted = file.read().split()
        if wanted == [who, did, what]:
            if not _again:
                os.unlink(_file)
            os.kill(os.getpid(), signal.SIGKILL)
    except FileNotFoundError:
        pass  # the file is missing: the test wants no crash now
