"""The number of bytes of each slice of a model on the wire."""

from polyrhythm.core.placement.slices import lay_out
from polyrhythm.wire.messages import JobSpec, ModelSpec


def slice_sizes(spec: ModelSpec, job: JobSpec) -> dict[int, int]:
    layout = lay_out(spec, job.servers, job.slice_nbytes)
    return {s.id: s.length * layout.spaces[s.space].item_nbytes for s in layout.slices}
