"""The state of a slice that one process hands to another."""

import torch

from polyrhythm.runtime.slice_state import is_sum, step_in, sum_state
from polyrhythm.wire.messages import SliceStep


def test_a_sum_keeps_its_step() -> None:
    """With `--optimizer-on workers`, workers that get a sum from the next primary make the same step as
    those that got it from the former one."""
    step = SliceStep(3.0, 0.1, scale=0.5, per_round=2.0)
    state = sum_state(torch.zeros(4), step)
    assert is_sum(state)
    assert step_in(state) == step
