"""The process of the lead writes a model to a file while its slices arrive."""

import threading
from pathlib import Path

import torch
from safetensors.torch import load_file

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.machine import Event
from polyrhythm.runtime.server.saving import ModelSaver
from polyrhythm.wire import messages as m

LENGTH, SLICES = 16, 3
SPEC = m.ModelSpec(
    (m.TensorSpec("w", (LENGTH * SLICES,), "float32", 0, (1,)),),
    m.OptimizerSpec("SGD", ({"lr": 0.1},)),
)


def test_a_slice_that_waits_for_the_disk_does_not_change_with_the_memory_of_its_link(
    tmp_path: Path,
) -> None:
    """A link receives every slice into the same memory. The disk is slow: when the first slice is
    written, all others have arrived."""
    writing, arrived, saved = threading.Event(), threading.Event(), threading.Event()

    def post(event: Event) -> None:
        if isinstance(event, ev.ModelSaved):
            saved.set()
        else:
            writing.set()
            assert arrived.wait(10)

    job = m.JobSpec(job="j", slice_nbytes=4 * LENGTH)
    saver = ModelSaver(
        tmp_path, job, announce=lambda: None, deliver=lambda files, place: place, post=post
    )
    received = torch.zeros(LENGTH)
    data = memoryview(received.view(torch.uint8).numpy())
    saver.create(fx.CreateModel(1, "model.safetensors", SPEC, 5, last=False))
    for number in range(SLICES):
        received.fill_(float(number))
        saver.take(m.Collected(server=1, number=1, slice=number), data)
        assert writing.wait(10)
    received.fill_(99.0)
    arrived.set()
    saver.commit(fx.CommitModel(1))
    assert saved.wait(10)
    saver.close()
    written = load_file(tmp_path / "model.safetensors")["w"].view(SLICES, LENGTH)
    assert written.tolist() == [[float(number)] * LENGTH for number in range(SLICES)]
