"""How many threads torch uses in each worker of a machine."""

from polyrhythm.io.cores import usable_cores


def share_of_cores(workers: int, servers: int) -> int:
    """The cores of one worker, on a machine with so many workers and servers. Every server keeps a
    core, so that the threads of workers do not wait for servers."""
    return max(1, (usable_cores() - servers) // max(1, workers))
