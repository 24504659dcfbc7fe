"""Places where a test lets a server die: just after it has taken or sent a message.

Off unless POLYRHYTHM_CRASH_AT names a file when the process starts. As soon as that file says, for
example, `s1 sent Placed`, the next `Placed` that leaves s1 is its last word. Whoever dies takes the file
away first, so that one line kills once.
"""

import os
import signal

_FILE = os.environ.get("POLYRHYTHM_CRASH_AT", "")
ON = bool(_FILE)


def reach(who: str, did: str, message: object) -> None:
    """`who` did this with the message; it may not live on."""
    if not ON:
        return
    try:
        with open(_FILE) as file:
            wanted = file.read().split()
        if wanted == [who, did, type(message).__name__]:
            os.unlink(_FILE)
            os.kill(os.getpid(), signal.SIGKILL)
    except FileNotFoundError:
        pass  # nothing is wanted now
