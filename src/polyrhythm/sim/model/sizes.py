"""The number of bytes of each slice of a model on the wire."""

from polyrhythm.core.kinds import INT8, may_be_quantised, quantised_nbytes
from polyrhythm.core.placement.slices import layout_of
from polyrhythm.wire.messages import JobSpec, ModelSpec


def slice_sizes(spec: ModelSpec, job: JobSpec) -> dict[int, int]:
    layout = layout_of(spec, job)
    return {s.id: s.length * layout.spaces[s.space].item_nbytes for s in layout.slices}


def quantised_sizes(spec: ModelSpec, job: JobSpec) -> dict[int, int]:
    """The slices that contributions contain in quantised form, with their sizes. All links of a
    simulated job carry bytes, as TCP does."""
    if job.push != INT8:
        return {}
    layout = layout_of(spec, job)
    slices = (slice_ for slice_ in layout.slices if may_be_quantised(layout, slice_))
    return {slice_.id: quantised_nbytes(layout, slice_) for slice_ in slices}
