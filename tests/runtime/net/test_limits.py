"""How large a payload may be that comes over the links of a job."""

import pytest

from polyrhythm.api.values import slice_nbytes
from polyrhythm.core.placement.slices import layout_of
from polyrhythm.errors import UsageError
from polyrhythm.runtime.net.handshake import limits_for
from polyrhythm.tensors.dtypes import held_dtype
from polyrhythm.wire import messages as m
from polyrhythm.wire.frames import MEMBER


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_worker_may_share_the_parameters_of_the_largest_slice(dtype: str) -> None:
    """Parameters of half precision are shared as float32."""
    job = m.JobSpec(job="j", servers=2, optimizer_on="workers", slice_nbytes=128 * 1024)
    division = m.Division(job.servers, job.slice_nbytes, 0)
    tensor = m.TensorSpec("weight", (1_000_000,), dtype, 0, (1,))
    spec = m.ModelSpec((tensor,), m.OptimizerSpec("SGD", ({"lr": 0.1},)), division=division)
    layout = layout_of(spec, job)
    itemsize = held_dtype(layout.spaces[0], job).itemsize
    largest = max(slice_.length * itemsize for slice_ in layout.slices)
    assert largest <= limits_for(job).payload_nbytes


def test_the_parameters_of_the_largest_allowed_slice_may_be_answered() -> None:
    """The end that dials accepts the same of every job."""
    most = slice_nbytes("32MiB")
    job = m.JobSpec(job="j", slice_nbytes=most)
    tensor = m.TensorSpec("weight", (most,), "bfloat16", 0, (1,))
    spec = m.ModelSpec((tensor,), m.OptimizerSpec("SGD", ({"lr": 0.1},)))
    layout = layout_of(spec, job)
    itemsize = held_dtype(layout.spaces[0], job).itemsize
    assert max(slice_.length * itemsize for slice_ in layout.slices) == MEMBER.payload_nbytes
    with pytest.raises(UsageError, match="to 32MiB"):
        slice_nbytes("33MiB")


def test_a_job_of_tiny_slices_takes_payloads_that_are_no_slices() -> None:
    assert limits_for(m.JobSpec(job="j", slice_nbytes=256)).payload_nbytes >= 64 * 1024
