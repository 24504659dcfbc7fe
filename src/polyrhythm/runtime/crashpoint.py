"""Points at which a test can kill a server: just after it has received or sent a message, and just
before and after it reports its address to the command that started it.

They are off unless POLYRHYTHM_CRASH_AT names a file when the process starts. When that file
contains, for example, `s1 sent Placed`, s1 kills itself after it has sent its next `Placed`. It
removes the file first, so that one line kills once; with POLYRHYTHM_CRASH_AGAIN set, the file
stays.
"""

import os
import signal

_FILE = os.environ.get("POLYRHYTHM_CRASH_AT", "")
_AGAIN = bool(os.environ.get("POLYRHYTHM_CRASH_AGAIN"))
ON = bool(_FILE)


def reach(who: str, did: str, message: object) -> None:
    """Die here if the file names this process, what it did, and the type of the message."""
    if not ON:
        return
    try:
        with open(_FILE) as file:
            wanted = file.read().split()
        if wanted == [who, did, type(message).__name__]:
            if not _AGAIN:
                os.unlink(_FILE)
            os.kill(os.getpid(), signal.SIGKILL)
    except FileNotFoundError:
        pass  # no crash is asked for now
