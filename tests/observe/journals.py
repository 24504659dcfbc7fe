"""Short functions that make journal lines for tests."""

from typing import Any

from polyrhythm.wire.messages.reasons import Reason

Line = dict[str, Any]
GOAL = Reason("goal", {"goal": "rounds", "rounds": 9})


def line(at_s: float, what: str, **fields: Any) -> Line:
    return {"at_s": at_s, "what": what, **fields}


def joined(at_s: float, worker: int, incarnation: int | None = None) -> Line:
    epoch = worker + 1 if incarnation is None else incarnation
    return line(at_s, "joined", worker=worker, name=f"worker-{worker}", epoch=epoch)


def left(at_s: float, worker: int, code: str, **fields: Any) -> Line:
    name = f"worker-{worker}"
    return line(at_s, "left", worker=worker, name=name, reason=code, fields=fields)


def totals(
    contributions: int, compute: float = 0.0, wait: float = 0.0, transfer: float = 0.0, **more: Any
) -> dict[str, Any]:
    """Return the totals of a worker with ten points per contribution. The times are in seconds."""
    return {
        "contributions": contributions,
        "points": 10 * contributions,
        "compute_ns": round(compute * 1e9),
        "wait_ns": round(wait * 1e9),
        "transfer_ns": round(transfer * 1e9),
        **more,
    }


def rounds(
    at_s: float,
    round_: int,
    workers: dict[str, dict[str, Any]] | None = None,
    **fields: Any,
) -> Line:
    return line(
        at_s,
        "rounds",
        **{
            "round": round_,
            "rounds": 1,
            "contributions": 0,
            "points": 0,
            "objective": None,
            "longest_s": 0.0,
            "passes": 0,
            "reason": "all-arrived",
            "workers": workers or {},
            **fields,
        },
    )


def waiting(at_s: float, since_s: float, missing: list[int], **fields: Any) -> Line:
    return line(
        at_s,
        "waiting",
        **{
            "reason": "round",
            "fields": {"round": 5, "missing": missing},
            "since_s": since_s,
            "until_s": None,
            **fields,
        },
    )


def opened(*workers: int) -> list[Line]:
    """Return the lines of a run with one server, whose round 1 began at 1 s."""
    return [
        line(0.1, "server-joined", server=0),
        *(line(0.2, "linked", peer=f"w{worker}", link="local") for worker in workers),
        *(joined(0.2, worker) for worker in workers),
        line(0.5, "placed", nbytes=4_000, slices=[2]),
        rounds(1.0, 0, reason="opened", rounds=0),
    ]


def ended(at_s: float, reason: Reason = GOAL, **fields: Any) -> Line:
    last = {"failed": False, "rounds": 9, "folds": {"0": 9}}
    return line(at_s, "ended", **{**reason.noted(), **last, **fields})


def learning(at_s: float, state: str, **fields: Any) -> Line:
    found = {
        "state": state,
        "passes": 5,
        "objective": 2.0,
        "first": 2.3,
        "best": 2.0,
        "best_pass": 5,
        "rises": 0,
        "workers": [],
    }
    return line(at_s, "learning", **{**found, **fields})
