"""From the text of `--sync` to a policy, or a clear refusal."""

from polyrhythm.core.sync.bsp import Bsp
from polyrhythm.core.sync.policy import SyncPolicy
from polyrhythm.core.sync.restart import Restart
from polyrhythm.core.sync.staleness import Staleness
from polyrhythm.core.sync.timer import Timer
from polyrhythm.errors import UsageError

KINDS = ("gradient", "local")
SYNCS = "bsp, ssp:S (S steps ahead of the slowest), ssp-restart:S, asp"


def has_rounds(sync: str) -> bool:
    """Whether folds are ordered by the lead; otherwise servers fold contributions as they come."""
    return sync == "bsp"


def asks_before_steps(sync: str) -> bool:
    """Whether a worker needs the lead's word before it begins its next step."""
    return sync != "asp"


def choose_policy(sync: str, timer: str, kind: str) -> SyncPolicy:
    policy = _policy(sync, timer)
    if kind not in KINDS:
        raise UsageError(f"--kind {kind!r} is not known: choose one of {', '.join(KINDS)}")
    if kind not in policy.kinds:
        allowed = ", ".join(sorted(policy.kinds))
        raise UsageError(f"--sync {sync} cannot fold kind {kind!r}: it takes {allowed}")
    return policy


def _policy(sync: str, timer: str) -> SyncPolicy:
    name, colon, bound = sync.partition(":")
    match name, colon:
        case "bsp", "":
            return Bsp(Timer.parse(timer))
        case "asp", "":
            return Staleness(None)
        case "ssp", ":":
            return Staleness(_bound(sync, bound))
        case "ssp-restart", ":":
            return Restart(_bound(sync, bound))
    raise UsageError(f"--sync {sync!r} is not known: choose one of {SYNCS}")


def _bound(sync: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--sync {sync!r} needs a whole number of steps, such as ssp:8")
    return int(text)
