"""The flags of staging: delays of workers and servers, for tests and experiments
(`learn/staging.py`)."""

from typing import Annotated

import typer

MinStep = Annotated[
    str | None,
    typer.Option(help="Staging: a step's computing takes at least this long, as in 10ms."),
]
Slow = Annotated[
    list[str] | None,
    typer.Option(help="Staging: worker-3 computes four times as long: 3=4x (repeatable)."),
]
SlowAt = Annotated[
    list[str] | None,
    typer.Option(
        help="Staging: worker-3 slows down after 60 s of training: 60s:3=4x (repeatable)."
    ),
]
Stall = Annotated[
    list[str] | None,
    typer.Option(help="Staging: worker-3 pauses every 1000 points: 3=32ms/1000 (repeatable)."),
]
Tenant = Annotated[
    list[str] | None,
    typer.Option(help="Staging: another process competes with worker-2: 2 (repeatable)."),
]
SlowFold = Annotated[
    list[str] | None,
    typer.Option(help="Staging: folds of server s0 take 500 ms longer: 0=500ms (repeatable)."),
]


def staged(min_step: str | None, **of_some: list[str] | None) -> dict[str, str]:
    """The given flags in the form that a job's spec has. `of_some`: per flag, one item for each
    process that it names."""
    flags = {} if min_step is None else {"min-step": min_step}
    for name, items in of_some.items():
        if items:
            flags[name.replace("_", "-")] = ",".join(items)
    return flags
