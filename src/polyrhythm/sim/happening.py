"""One event of a scenario: a fault of a process, or another event at a given time."""

from typing import Literal

import msgspec

from polyrhythm.core.names import SEAT
from polyrhythm.sim.quantities import Duration, check_factor

LINKS = ("cut", "silence", "heal")
"""The events that happen to a link."""


class Happening(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fault of a worker or server, or another event at a given time. `cut` breaks the link
    between a server and another process. `silence` lets nothing pass between the two, without ending
    their link, until `heal`. `end` stops the job in an orderly way, as Ctrl-C or
    `polyrhythm stop` does."""

    at: Duration
    what: Literal[
        "crash", "stop", "continue", "leave", "slow", "join", "cut", "silence", "heal", "end"
    ]
    worker: str | None = None
    server: int | None = None
    factor: float | None = None
    """For slow: from then on, steps take this many times as long."""
    points: int | None = None
    """For join, with data_private: the number of points in the worker's own data set from then on.
    None: as many as before."""
    share_data: bool | None = None
    """For join: whether the worker sends its points to others from then on. None: as before."""
    peer: int | None = None
    """For cut, silence and heal: the server at the other end of the link."""
    operator: str | None = None
    """For end: the name of the operator that asks for the stop. None: the job gets a signal, as
    from Ctrl-C."""

    def __post_init__(self) -> None:
        if self.what in LINKS:
            if self.server is None or (self.worker is None) == (self.peer is None):
                raise ValueError(
                    f"{self.what} needs both ends of a link: a server, and either a worker or a peer"
                )
        elif self.what == "end":
            if self.worker is not None or self.server is not None:
                raise ValueError("end stops the whole job: give no worker and no server")
        elif (self.worker is None) == (self.server is None):
            raise ValueError(f"{self.what} happens to a worker or a server: give one of the two")
        elif self.server is not None and self.what in ("leave", "slow"):
            raise ValueError(f"{self.what} happens to workers only")
        if self.what == "crash" and self.server == SEAT.server:
            raise ValueError(f"the lead runs in server {SEAT.server}: its death would end the job")
        about_data = self.points is not None or self.share_data is not None
        if about_data and (self.what != "join" or self.worker is None):
            raise ValueError("points and share_data can be given only if a worker joins")
        if self.points is not None and self.points < 1:
            raise ValueError(f"points is {self.points}: it must be at least 1")
        if self.operator is not None and self.what != "end":
            raise ValueError("the field operator can be given only with what = 'end'")
        if (self.factor is not None) != (self.what == "slow"):
            raise ValueError("the field factor must be given with what = 'slow', and only then")
        if self.factor is not None:
            check_factor(self.factor)
