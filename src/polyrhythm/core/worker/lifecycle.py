"""The phases of a worker, and one table of all transitions between them.

*In each phase, an event is either handled or ignored on purpose, and it leads only to phases in the
table.* A machine under test raises an error at any other transition.
"""

from collections.abc import Mapping
from enum import StrEnum

from polyrhythm.core import events as ev
from polyrhythm.wire import messages as m


class Phase(StrEnum):
    JOINING = "joining"
    """The lead has not admitted this incarnation yet."""
    ADMITTED = "admitted"
    """The worker connects to the servers and sends the description of its model."""
    PLACING = "placing"
    """The worker has routes, and waits for its first version."""
    WAITING = "waiting"
    """The worker has contributed, and waits for the next version."""
    RESTING = "resting"
    """On arrival: the worker has visited all of its points, and waits for chunks or for the end of
    the job."""
    COMPUTING = "computing"
    """The user's code computes with a version."""
    PARTING = "parting"
    """The worker was told to leave, and the user's code ends its loop."""
    LEAVING = "leaving"
    """The user's code has ended, and some contributions are not acknowledged yet."""
    ENDED = "ended"


AWAITING = (Phase.WAITING, Phase.PLACING)
"""The phases in which a worker continues as soon as it has all slices of a version that it may
use."""

_LETTERS = {
    "J": Phase.JOINING,
    "A": Phase.ADMITTED,
    "P": Phase.PLACING,
    "W": Phase.WAITING,
    "R": Phase.RESTING,
    "C": Phase.COMPUTING,
    "T": Phase.PARTING,
    "L": Phase.LEAVING,
    "E": Phase.ENDED,
}
# For each event and each phase: the letters of the phases that may follow ("T" is PARTING). The
# worker may also stay in its phase. "=": the worker always stays in its phase. "-": the event is
# ignored.
_ROWS: dict[type, str] = {
    # the phases are:  JOINING ADMITTED PLACING WAITING RESTING COMPUTING PARTING LEAVING
    ev.Tick:          "E       JTE      JTE     JTE     JTE     JTE       JE      E",
    ev.LeadLinked:    "=       =        =       =       =       =         =       =",
    ev.LeadHeard:     "=       =        =       =       =       =         =       =",
    m.Alive:          "=       =        =       =       =       =         =       =",
    ev.StateKept:     "=       =        =       =       =       =         =       =",
    ev.StateRestored: "=       =        =       =       =       =         =       =",
    ev.Reporting:     "=       =        =       =       =       =         =       =",
    m.Admitted:       "A       -        -       A       A       -         A       -",
    ev.Linked:        "-       PCT      CT      JPCT    PC      =         P       E",
    ev.Attaching:     "=       =        =       =       =       =         =       =",
    ev.Sizing:        "=       =        =       =       =       =         =       =",
    m.Divided:        "-       =        =       =       =       =         =       =",
    m.Routing:        "-       PCT      CT      JPCT    PC      =         P       E",
    ev.Enrolling:     "=       =        =       J       J       J         J       -",
    ev.PointsDelivered: "=     =        =       =       =       =         =       =",
    m.Leased:         "-       =        CT      CT      =       =         =       =",
    ev.Computed:      "WT      WT       WCT     CTJ     WCTJ    WTJ       WJ      -",
    ev.Exhausted:     "WRT     WRT      WRCT    RCTJ    TJ      WRTJ      WRJ     -",
    ev.PassedAll:     "=       =        =       =       =       =         =       -",
    m.Acknowledged:   "-       =        =       C       C       C         =       E",
    ev.Skipped:       "-       -        =       C       C       C         =       E",
    ev.Landed:        "-       -        CT      CT      C       C         =       E",
    m.Release:        "-       =        CT      CT      WCT     =         =       =",
    m.Progressed:     "-       =        =       =       =       =         =       =",
    m.Pause:          "-       -        -       -       -       =         -       -",
    m.Withhold:       "-       =        =       =       =       =         =       =",
    m.Keep:           "-       =        =       =       =       =         =       =",
    m.Share:          "-       =        =       =       =       =         =       E",
    m.Appointed:      "-       =        =       =       =       =         =       =",
    m.Proceed:        "-       =        =       C       C       C         =       =",
    ev.LeaveAsked:    "T       T        T       T       T       T         =       -",
    ev.Leaving:       "LE      LE       LE      LE      LE      LE        LE      E",
    m.Evicted:        "-       JT       JT      JT      JT      JT        J       E",
    ev.LinkClosed:    "E       E        E       JTE     JTE     JTE       JE      E",
    m.Stop:           "E       E        E       E       E       E         E       E",
    m.Refusal:        "TE      TE       TE      TE      TE      TE        E       TE",
}  # fmt: skip


def _parse(rows: Mapping[type, str]) -> dict[Phase, dict[type, frozenset[Phase]]]:
    table: dict[Phase, dict[type, frozenset[Phase]]] = {phase: {} for phase in Phase}
    for event, row in rows.items():
        for phase, cell in zip(list(Phase)[:-1], row.split(), strict=True):
            if cell != "-":
                moves = frozenset(_LETTERS[letter] for letter in cell if letter != "=")
                table[phase][event] = moves | {phase}
    return table


EVENTS = frozenset(_ROWS)
"""All events that a worker handles. After its end it handles none."""
TABLE = _parse(_ROWS)
"""Per phase and per event that it handles: the phases in which the worker may be afterwards."""
