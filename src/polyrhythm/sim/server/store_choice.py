"""Chooses the slice store of a simulated server."""

from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.sim.server import rows_store, store_modes
from polyrhythm.sim.server.slice_store import SimSliceStore
from polyrhythm.wire.messages import JobSpec


def choose_slice_store(job: JobSpec) -> type[SimSliceStore]:
    """The class of a server's slice store, which depends on the job's sync policy and kind."""
    if not traits_of(job.sync).rounds:
        return store_modes.SimOnArrivalSliceStore
    return rows_store.SimRowsSliceStore if keeps_rows(job.kind) else store_modes.SimRoundsSliceStore
