"""How many threads torch has in each worker of a machine."""

from polyrhythm.io.cores import usable_cores


def share_of_cores(workers: int, servers: int) -> int:
    """Each worker's, where so many of both are on the machine: a core is left to every server, so that
    a worker's threads do not wait for one that a server has."""
    return max(1, (usable_cores() - servers) // max(1, workers))
