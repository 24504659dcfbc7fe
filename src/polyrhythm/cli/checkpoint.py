"""`polyrhythm checkpoint`: make a checkpoint of a running job now."""

from polyrhythm.api import flags
from polyrhythm.api.flags import RUNS, RunsDir
from polyrhythm.api.saying import tell
from polyrhythm.cli.lead import ask_once, find_lead
from polyrhythm.core.values import plain_reason
from polyrhythm.errors import PolyrhythmError
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire.messages import OperatorRequest
from polyrhythm.wire.messages.operator import CHECKPOINT


def checkpoint(
    run: flags.RunOrAddress,
    secret_file: flags.SecretFile = None,
    runs_dir: RunsDir = RUNS,
    debug: flags.Debug = False,
) -> None:
    """Make a checkpoint of a running job. The command waits until it is written.

    With rounds it is made at the next fold. The job goes on meanwhile, and keeps its regular
    checkpoints if it makes any.

    Examples:

      polyrhythm checkpoint mine
    """
    lead = find_lead(run, runs_dir, secret_file)
    last = ask_once(lead, OperatorRequest(what=CHECKPOINT))
    told = in_words(plain_reason(last.reason))
    if last.failed or last.reason.code != "checkpoint-made":
        raise PolyrhythmError(f"{lead.name}: no checkpoint was made: {told}")
    tell(f"{lead.name}: {told}")
