"""A small model and checkpoints of it."""

import msgspec
import torch

from polyrhythm.core.placement.slices import Layout, Slice, lay_out
from polyrhythm.store.checkpoints import Checkpoint, write_manifest, write_slices
from polyrhythm.store.objects import Store
from polyrhythm.wire.messages import Division, JobSpec, ModelSpec, OptimizerSpec, TensorSpec

MODEL = ModelSpec(
    tensors=(
        TensorSpec("first.weight", (100, 7), "float32", 0, (7, 1)),
        TensorSpec("first.bias", (100,), "float32", 0, (1,)),
        TensorSpec("second.weight", (30, 30), "float32", 1, (30, 1)),
        TensorSpec("mean", (64,), "float32", -1, (1,)),
        TensorSpec("count", (), "int64", -1, ()),
    ),
    optimizer=OptimizerSpec("Adam", ({"lr": 0.1, "betas": [0.9, 0.999]}, {"lr": 0.2})),
)
SLICE_NBYTES = 1024
RECORD = {
    "number": 1,
    "round": 12,
    "passes": 2,
    "clocks": {"worker-0": 12},
    "seed": 7,
    "names": ["worker-0", "ärger"],
}


def layout_for(servers: int, slice_nbytes: int = SLICE_NBYTES) -> Layout:
    return lay_out(MODEL, servers, slice_nbytes)


def spaces(layout: Layout, seed: int = 0) -> dict[str, list[torch.Tensor]]:
    """Return random parameters and two random tensors of optimizer state. Each is a list with one
    flat buffer per dtype of the model."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: [
            torch.randint(0, 1000, (space.length,), generator=generator).to(
                getattr(torch, space.dtype)
            )
            for space in layout.spaces
        ]
        for name in ("parameters", "exp_avg", "exp_avg_sq")
    }


def tensors_of(
    slice_: Slice, flat: dict[str, list[torch.Tensor]], steps: int = 5
) -> dict[str, torch.Tensor]:
    """Return the tensors of a slice. A slice that holds buffers of the model has no optimizer
    state."""
    names = ["parameters"] if slice_.group < 0 else list(flat)
    end = slice_.offset + slice_.length
    found = {name: flat[name][slice_.space][slice_.offset : end] for name in names}
    return found if slice_.group < 0 else {**found, "step": torch.tensor(float(steps))}


def write_checkpoint(
    store: Store, number: int = 1, servers: int = 3, seed: int = 0, *, job: JobSpec | None = None
) -> Checkpoint:
    layout = layout_for(servers)
    flat = spaces(layout, seed)
    files = [
        write_slices(
            store,
            number,
            server,
            {s.id: tensors_of(s, flat) for s in layout.slices if s.id % servers == server},
        )
        for server in range(servers)
    ]
    return write_manifest(
        store,
        number,
        round=12,
        model=msgspec.structs.replace(MODEL, division=Division(servers, SLICE_NBYTES)),
        job=job or JobSpec(job="lenet", servers=servers),
        files=files,
        record=RECORD,
    )


def check_slices(found: dict[int, dict[str, torch.Tensor]], layout: Layout, seed: int = 0) -> None:
    """Assert that the found slices have the contents that `write_checkpoint` wrote."""
    flat = spaces(layout, seed)
    for slice_ in layout.slices:
        if slice_.id not in found:
            continue
        expected = tensors_of(slice_, flat)
        assert found[slice_.id].keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(found[slice_.id][name], tensor), (slice_.id, name)
            assert found[slice_.id][name].dtype == tensor.dtype
