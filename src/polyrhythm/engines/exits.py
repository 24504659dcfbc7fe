"""How processes and workers end, in words."""

import signal
from typing import NoReturn


def ending(status: int) -> str:
    """How a process ended, in words. A negative `status` is the number of a signal."""
    if status < 0:
        return f"killed by {name_of(-status)}"
    return f"exit status {status}"


def name_of(number: int) -> str:
    """The name of a signal, such as SIGTERM."""
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def signal_again(number: int, stopped: str) -> NoReturn:
    """Give this process the signal that has stopped its job, after the former handler is restored:
    Ctrl-C raises KeyboardInterrupt, SIGTERM ends the process, and a handler of the user's program
    runs. If the program continues after its handler, KeyboardInterrupt says what was stopped."""
    signal.raise_signal(number)
    raise KeyboardInterrupt(f"{stopped} was stopped by {name_of(number)}")


def exit_words(error: SystemExit) -> str:
    """Describe the end of a worker whose code called `sys.exit`, with the number or the text that
    the code gave."""
    if error.code is None or isinstance(error.code, int):
        return f"exit status {int(error.code or 0)}"
    return f"sys.exit: {error.code}"
