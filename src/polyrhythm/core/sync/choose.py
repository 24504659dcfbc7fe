"""From the text of `--sync` to a policy, or a clear refusal."""

from polyrhythm.core.sync.bsp import Bsp
from polyrhythm.core.sync.policy import SyncPolicy
from polyrhythm.core.sync.timer import Timer
from polyrhythm.errors import UsageError

KINDS = ("gradient", "local")


def choose_policy(sync: str, timer: str, kind: str) -> SyncPolicy:
    if sync != "bsp":
        raise UsageError(f"--sync {sync!r} is not known here: choose bsp")
    policy = Bsp(Timer.parse(timer))
    if kind not in KINDS:
        raise UsageError(f"--kind {kind!r} is not known: choose one of {', '.join(KINDS)}")
    if kind not in policy.kinds:
        allowed = ", ".join(sorted(policy.kinds))
        raise UsageError(f"--sync {sync} cannot fold kind {kind!r}: it takes {allowed}")
    return policy
