"""The names of processes: s0, s1, ... (servers), w0, w1, ... (workers), operator-1, ... (links of
operators). A machine addresses a message with such a name, or with `lead`: `core/seat.py` says in
which process the lead runs."""

from functools import cache

LEAD = "lead"
_OPERATOR = "operator-"


@cache
def server_name(server: int) -> str:
    return f"s{server}"


@cache
def worker_name(worker: int) -> str:
    return f"w{worker}"


@cache
def worker_number(peer: str) -> int | None:
    """The number of the worker with this name; None if it is not a worker's name."""
    return int(peer[1:]) if peer.startswith("w") and peer[1:].isdigit() else None


@cache
def server_number(peer: str) -> int | None:
    """The number of the server with this name; None if it is not a server's name."""
    return int(peer[1:]) if peer.startswith("s") and peer[1:].isdigit() else None


@cache
def own_number(name: str) -> int | None:
    """The number in a name that a worker keeps when it is started again: `worker-3` (started by the
    job) or `rank-3` (started by torchrun, Slurm or another launcher). None: the name has none."""
    prefix, _, number = name.rpartition("-")
    known = prefix in ("worker", "rank") and number.isascii() and number.isdigit()
    return int(number) if known and len(number) < 10 else None


def operator_name(number: int) -> str:
    return f"{_OPERATOR}{number}"


def is_operator(peer: str) -> bool:
    """Whether this is the name of an operator's link. A link gets such a name only after its peer
    has sent an operator's hello and was authorised."""
    return peer.startswith(_OPERATOR)


def is_loopback(host: str) -> bool:
    """Whether this address is a loopback address."""
    return host in ("localhost", "::1") or host.startswith("127.")
