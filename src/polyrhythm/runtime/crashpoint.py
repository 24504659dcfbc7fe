"""Points at which a test can kill a server: just after it has received or sent a message, and just
before and after it reports its address to the command that started it.

They are off unless POLYRHYTHM_CRASH_AT names a file when the process starts. When that file
contains, for example, `s1 sent Placed`, s1 kills itself after it has sent its next `Placed`. It
removes the file first, so that one line kills once; with POLYRHYTHM_CRASH_AGAIN set, the file
stays.
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
    """Die here if the file names this process, what it did, and the type of the message."""
    if ON:
        reach_step(who, did, type(message).__name__)


def reach_step(who: str, did: str, what: str) -> None:
    """Die here if the file names this process, what it did, and what it did it to."""
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
        pass  # no crash is asked for now
