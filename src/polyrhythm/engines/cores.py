"""How many threads torch uses in each worker of a host."""

from polyrhythm.io.cores import usable_cores


def share_of_cores(workers: int, servers: int) -> int:
    """The number of cores for each worker, on a host with this many workers and servers. One core
    is left for every server, so that threads of workers do not take the servers' time."""
    return max(1, (usable_cores() - servers) // max(1, workers))
