"""`polyrhythm checkpoint`: make a checkpoint of a running job now."""

from polyrhythm.api import flags
from polyrhythm.api.flags import RUNS, RunsDir
from polyrhythm.api.saying import tell
from polyrhythm.cli.lead import carry_out, find_lead
from polyrhythm.wire.messages import OperatorRequest
from polyrhythm.wire.messages.operator import CHECKPOINT


def checkpoint(
    run: flags.RunOrAddress = None,
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
    request, done = OperatorRequest(what=CHECKPOINT), ("checkpoint-made",)
    tell(carry_out(lead, request, done=done, fault="no checkpoint was made"))
