"""A member that sends one contribution, made by a test, to a server."""

import itertools
import random

from polyrhythm.core.placement.slices import Slice
from polyrhythm.wire import messages as m
from tests.hostile.client import dial_node, hello_of
from tests.hostile.inputs import Inputs
from tests.hostile.nodes import Site

_numbers = itertools.count()
"""Numbers for the names of peers. Every peer gets a new name, because a peer whose link has just
ended may still be a member."""


def slice_of(site: Site, *, rows: bool = False) -> Slice:
    assert site.layout is not None
    return next(s for s in site.layout.slices if bool(s.width) is rows)


def push(site: Site, slice_: Slice, data: bytes, **fields: object) -> str:
    """The reason that the server gives when it refuses this contribution of a member."""
    wire = dial_node(site.servers[0].welcome)
    try:
        admitted = wire.enter(hello_of(f"mallory-{next(_numbers)}", "fuzzed"))
        assert admitted is not None
        message = m.Contribution(
            worker=admitted.worker,
            incarnation=admitted.incarnation,
            sequence=1,
            slice=slice_.id,
            slices=1,
            weight=1.0,
            **fields,  # type: ignore[arg-type]
        )
        wire.send(Inputs(random.Random(1)).frame(message, [data]))
        return wire.await_end() or ""
    finally:
        wire.close()
