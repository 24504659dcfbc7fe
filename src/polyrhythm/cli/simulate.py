"""`polyrhythm simulate`: every keyword of `polyrhythm.simulate` is a flag of this command."""

from pathlib import Path
from typing import Annotated, Any

import typer

from polyrhythm.api import flags
from polyrhythm.api.simulating import simulate as run_simulate
from polyrhythm.cli.keywords import flags_from
from polyrhythm.cli.launch import launch

_Scenario = Annotated[
    Path | None, typer.Argument(help="A scenario: FILE.toml with a job, workers and events.")
]


@flags_from(run_simulate)
def simulate(
    scenario: _Scenario = None,
    *,
    json_: flags.JsonAtEnd = False,
    verbose: flags.Verbose = False,
    **options: Any,
) -> None:
    """Simulate a job with workers, links and faults from a file. Its machines run in virtual time.

    The same file and seed give the same run. Times in the summary are virtual. With --from-run,
    steps and exchanges take as long as in a recorded run, so that you can see what another policy
    would do.

    Examples:

      polyrhythm simulate scenarios/straggler.toml

      polyrhythm simulate scenarios/a-death.toml --seed 7 --check --json

      polyrhythm simulate --from-run runs/digits-1 --sync asp
    """
    options["quiet"] = options.get("quiet", False) or json_
    launch(lambda: run_simulate(scenario, **options), as_json=json_, verbose=verbose)
