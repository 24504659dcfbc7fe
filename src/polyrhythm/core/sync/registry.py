"""From the text of `--sync` to a policy, or a clear refusal."""

from msgspec.structs import replace

from polyrhythm.core.sync.arrival.on_arrival import OnArrival
from polyrhythm.core.sync.arrival.restart import Restart
from polyrhythm.core.sync.arrival.staleness import Staleness
from polyrhythm.core.sync.barrier.abandoning import OFF, parse_patience
from polyrhythm.core.sync.barrier.batch_size import BatchSize
from polyrhythm.core.sync.barrier.batched import Batched
from polyrhythm.core.sync.barrier.bsp import Bsp
from polyrhythm.core.sync.barrier.fsp import Fsp
from polyrhythm.core.sync.barrier.psp import Psp
from polyrhythm.core.sync.barrier.timer import Timer
from polyrhythm.core.sync.interval.fixed import parse_interval
from polyrhythm.core.sync.policy import SyncPolicy
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec

KINDS = ("gradient", "local")
AUTO = "auto"
SYNCS = "bsp, psp, fsp, ssp:S (S steps ahead of the slowest), ssp-restart:S, asp, bspb, bspv"
COORDINATIONS = ("central", "semi")
_WITH_ROUNDS = ("bsp", "psp", "fsp", "bspb", "bspv")


def has_rounds(sync: str) -> bool:
    """Whether folds are ordered by the lead; otherwise servers fold contributions as they come."""
    return sync in _WITH_ROUNDS


def trains_through(sync: str) -> bool:
    """Whether a worker trains on while its contribution is folded, and rebases afterwards."""
    return sync == "psp"


def is_timed(sync: str) -> bool:
    """Whether a worker contributes when an interval ends, whatever it has by then."""
    return sync == "fsp"


def asks_before_steps(sync: str) -> bool:
    """Whether a worker needs the lead's word before it begins its next step."""
    return sync != "asp"


def gathers(sync: str) -> bool:
    """Whether several batches of the user's loop make one contribution, at the same parameters."""
    return sync in ("fsp", "bspb", "bspv")


def choose_kind(job: JobSpec) -> JobSpec:
    """The job with a kind in place of `auto`. psp takes local steps only. fsp learns as much per pass
    with either kind and more per second with local steps (decision 030), unless something else that
    was asked for needs gradients. Every other policy makes the user's own steps with gradients."""
    if job.kind != AUTO:
        return job
    needs_gradients = job.abandon != OFF or job.in_place or job.updater == "addition"
    local = trains_through(job.sync) or (is_timed(job.sync) and not needs_gradients)
    return replace(job, kind="local" if local else "gradient")


def choose_policy(job: JobSpec) -> SyncPolicy:
    sync, kind = job.sync, job.kind
    policy = _policy(job)
    if kind not in KINDS:
        raise UsageError(f"--kind {kind!r} is not known: choose one of {', '.join((AUTO, *KINDS))}")
    if kind not in policy.kinds:
        allowed = ", ".join(sorted(policy.kinds))
        raise UsageError(f"--sync {sync} cannot fold kind {kind!r}: it takes {allowed}")
    if job.abandon != OFF and (not is_timed(sync) or kind != "gradient"):
        raise UsageError(
            "--abandon goes with --sync fsp and --kind gradient: local steps cannot be undone"
        )
    if job.read_ahead and asks_before_steps(sync):
        raise UsageError(
            f"--read-ahead goes with --sync asp: under {sync} a worker waits before each step anyway"
        )
    return policy


def _policy(job: JobSpec) -> SyncPolicy:
    sync = job.sync
    name, colon, bound = sync.partition(":")
    match name, colon:
        case "bsp", "":
            return Bsp(Timer.parse(job.timer))
        case "bspb", "":
            return Batched(Timer.parse(job.timer), None)
        case "bspv", "":
            return Batched(Timer.parse(job.timer), BatchSize())
        case "psp", "":
            if job.most_steps < 1:
                raise UsageError(f"--most-steps is {job.most_steps}: it must be at least 1")
            return Psp(Timer.parse(job.timer), job.most_steps)
        case "fsp", "":
            if job.coordination not in COORDINATIONS:
                known = ", ".join(COORDINATIONS)
                raise UsageError(
                    f"--coordination {job.coordination!r} is not known: choose one of {known}"
                )
            return Fsp(
                Timer.parse(job.timer),
                parse_interval(job.interval),
                semi=job.coordination == "semi",
                patience_ns=parse_patience(job.abandon),
            )
        case "asp", "":
            return OnArrival(Staleness(None))
        case "ssp", ":":
            return OnArrival(Staleness(_bound(sync, bound)))
        case "ssp-restart", ":":
            return OnArrival(Restart(_bound(sync, bound)))
    raise UsageError(f"--sync {sync!r} is not known: choose one of {SYNCS}")


def _bound(sync: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--sync {sync!r} needs a whole number of steps, such as ssp:8")
    return int(text)
