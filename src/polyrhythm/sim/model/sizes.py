"""The number of bytes of each slice of a model on the wire."""

from polyrhythm.core.kinds import INT8, may_be_quantised, quantised_nbytes
from polyrhythm.core.placement.slices import layout_of
from polyrhythm.wire.messages import JobSpec, ModelSpec


def slice_sizes(spec: ModelSpec, job: JobSpec) -> dict[int, int]:
    layout = layout_of(spec, job)
    return {s.id: s.length * layout.spaces[s.space].item_nbytes for s in layout.slices}


_TENSORS = {"SGD": 1, "Adagrad": 1, "RMSprop": 1}
_MOST_HAVE = 2


def state_sizes(spec: ModelSpec, job: JobSpec) -> dict[int, int]:
    """The bytes of the parameters and of the state of the optimizer of each slice
    (`--optimizer-on workers`). Most optimizers keep two numbers for each parameter."""
    kept = _TENSORS.get(spec.optimizer.name, _MOST_HAVE)
    return {slice_: nbytes * (1 + kept) for slice_, nbytes in slice_sizes(spec, job).items()}


def quantised_sizes(spec: ModelSpec, job: JobSpec) -> dict[int, int]:
    """The slices that contributions contain in quantised form, with their sizes. All links of a
    simulated job carry bytes, as TCP does."""
    if job.push != INT8:
        return {}
    layout = layout_of(spec, job)
    slices = (slice_ for slice_ in layout.slices if may_be_quantised(layout, slice_))
    return {slice_.id: quantised_nbytes(layout, slice_) for slice_ in slices}
