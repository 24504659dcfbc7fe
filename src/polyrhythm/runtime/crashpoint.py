"""Places where a test lets a server die: just after it has taken or sent a message, and just before
and after it tells its address to the command that started it.

Off unless POLYRHYTHM_CRASH_AT names a file when the process starts. As soon as that file says, for
example, `s1 sent Placed`, the next `Placed` that leaves s1 is its last word. Whoever dies takes the file
away first, so that one line kills once; with POLYRHYTHM_CRASH_AGAIN set, it kills every time.
"""

import os
import signal

_FILE = os.environ.get("POLYRHYTHM_CRASH_AT", "")
_AGAIN = bool(os.environ.get("POLYRHYTHM_CRASH_AGAIN"))
ON = bool(_FILE)


def reach(who: str, did: str, message: object) -> None:
    """`who` did this with the message; it may not live on."""
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
        pass  # nothing is wanted now
