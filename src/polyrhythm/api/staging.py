"""The flags of staging: delays of workers and servers, for tests and experiments
(`learn/staging.py`)."""

from typing import Annotated

import typer

MinStep = Annotated[
    str | None,
    typer.Option(help="Staging: every step computes for at least this long, such as 10ms."),
]
Slow = Annotated[
    list[str] | None,
    typer.Option(help="Staging: 3=4x makes worker-3 compute four times as long (repeatable)."),
]
SlowAt = Annotated[
    list[str] | None,
    typer.Option(
        help="Staging: 60s:3=4x makes worker-3 compute four times as long after 60 s of training"
        " (repeatable)."
    ),
]
Stall = Annotated[
    list[str] | None,
    typer.Option(
        help="Staging: 3=32ms/1000 makes worker-3 pause for 32 ms after every 1000 points (repeatable)."
    ),
]
Tenant = Annotated[
    list[str] | None,
    typer.Option(
        help="Staging: 2 starts another process that competes with worker-2 (repeatable)."
    ),
]
SlowFold = Annotated[
    list[str] | None,
    typer.Option(help="Staging: 0=500ms makes folds of server s0 take 500 ms longer (repeatable)."),
]


def staged(min_step: str | None, **of_some: list[str] | None) -> dict[str, str]:
    """The given flags as a job's spec stores them: one text per flag. `of_some`: for each flag that
    can be repeated, the values that the user gave."""
    flags = {} if min_step is None else {"min-step": min_step}
    for name, items in of_some.items():
        if items:
            flags[name.replace("_", "-")] = ",".join(items)
    return flags
