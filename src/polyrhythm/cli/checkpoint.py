"""`polyrhythm checkpoint`: make a checkpoint of a running job now."""

from polyrhythm.api import flags
from polyrhythm.api.flags import RUNS, RunsDir
from polyrhythm.api.saying import tell
from polyrhythm.cli.lead import check_running, find_lead
from polyrhythm.cli.stop import operator_name
from polyrhythm.core.values import plain_reason
from polyrhythm.errors import LinkError, PolyrhythmError, RunError
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.runs import load_run
from polyrhythm.runtime.operator import ask_lead
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
    request = OperatorRequest(what=CHECKPOINT)
    try:
        answers = ask_lead(lead.host, lead.port, operator_name(), lead.job, lead.secret, request)
        last = [answer for answer in answers if answer.done][-1]
    except LinkError as error:
        if lead.path is not None:
            check_running(load_run(lead.path))  # if the run has just ended, this error says so
        raise RunError(f"the lead of {lead.name} cannot be reached: {error}") from None
    told = in_words(plain_reason(last.reason))
    if last.failed or last.reason.code != "checkpoint-made":
        raise PolyrhythmError(f"{lead.name}: no checkpoint was made: {told}")
    tell(f"{lead.name}: {told}")
