"""The event about a contribution, which the runtime and the simulator make from the same function."""

from polyrhythm.core.events import Contributed
from polyrhythm.core.server import ledger as ledger_events
from polyrhythm.core.server.ledger import RoundsLedger
from polyrhythm.wire.messages import Contribution


def test_the_last_slice_reports_the_version_from_which_the_contribution_was_computed() -> None:
    """The contribution was computed for round 3, from version 2. A fold came between its slices, so
    it counts in round 4."""
    ledger = RoundsLedger()
    ledger.enlist({0: 1})
    ledger.close(2)
    first, last = (
        Contribution(
            worker=0, incarnation=1, sequence=5, round=3, slice=slice_, slices=2, pull=7, pulled=6
        )
        for slice_ in range(2)
    )
    assert ledger_events.contributed(ledger, first) is None
    ledger.close(3)
    found = ledger_events.contributed(ledger, last)
    assert found == Contributed(0, 1, 5, round=4, pull=7, pulled=6, version=2)
