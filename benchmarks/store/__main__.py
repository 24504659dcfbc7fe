"""Compares the time to write and to load a checkpoint with the time for the bare bytes.

    python -m benchmarks.store [--size 102MB] [--repeat 7] [--no-s3] [--json out.json]

`--size` is the size of the model. With Adam's two moments, a checkpoint is three times as large.
All ways to write and to load are measured one after the other, `--repeat` times, and the order
alternates. The table shows medians.

- Folder: `bare` writes the same buffers to one new file and waits until they are on the disk
  (fsync), as a checkpoint does. `bare, cached` does not wait.
- S3: `bare` is one put of the same buffers by obstore, to the same S3 server on this host.
- Loading: `bare` reads the file or gets the object. A checkpoint is also verified.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks import report
from polyrhythm.cli.bench import pushed_nbytes
from polyrhythm.core.placement.slices import Layout, lay_out
from polyrhythm.store.checkpoints import load, newest, read_slices, write_manifest, write_slices
from polyrhythm.store.objects import Store, open_store
from polyrhythm.wire.messages import Division, JobSpec, ModelSpec, OptimizerSpec, TensorSpec
from tools.s3_server import BUCKET, binary, running

SLICE_NBYTES = 2 * 1024 * 1024
ALLOWED = {"folder": 2.0, "s3": 1.5}
"""Per kind of store, the largest allowed ratio: the time to write a checkpoint, divided by the time
to write the bare bytes."""


class Subject:
    """A model with Adam's state, and the ways to write and to load it."""

    def __init__(self, nbytes: int, folder: Path) -> None:
        length = nbytes // 4
        self.model = ModelSpec(
            (TensorSpec("weight", (length,), "float32", 0, (1,)),),
            OptimizerSpec("Adam", ({"lr": 0.1},)),
            division=Division(1, SLICE_NBYTES),
        )
        self.layout: Layout = lay_out(self.model, 1, SLICE_NBYTES)
        self.slices = {
            slice_.id: {
                "parameters": torch.randn(slice_.length),
                "exp_avg": torch.randn(slice_.length),
                "exp_avg_sq": torch.rand(slice_.length),
                "step": torch.tensor(7.0),
            }
            for slice_ in self.layout.slices
        }
        tensors = [tensor for named in self.slices.values() for tensor in named.values()]
        self.buffers = [t.reshape(-1).view(torch.uint8).numpy().data for t in tensors]
        self.nbytes = sum(buffer.nbytes for buffer in self.buffers)
        self.folder = folder
        self.number = 0

    def write_checkpoint(self, store: Store) -> None:
        self.number += 1
        entry = write_slices(store, self.number, 0, self.slices)
        write_manifest(
            store,
            self.number,
            round=1,
            model=self.model,
            job=JobSpec(job="benchmark"),
            files=[entry],
            record={},
        )

    def load_checkpoint(self, store: Store) -> None:
        read_slices(store, load(store, self.number), self.layout.slices)

    def find_and_load_checkpoint(self, store: Store) -> None:
        read_slices(store, newest(store, report.say), self.layout.slices)

    def write_file(self, *, durable: bool) -> None:
        self.number += 1
        with (self.folder / f"bare-{self.number}").open("wb", buffering=0) as file:
            for buffer in self.buffers:
                file.write(buffer)
            if durable:
                os.fsync(file.fileno())

    def read_file(self) -> None:
        path = self.folder / f"bare-{self.number}"
        memory = bytearray(path.stat().st_size)
        with path.open("rb", buffering=0) as file:
            view = memoryview(memory)
            while view and (count := file.readinto(view)):
                view = view[count:]

    def put_object(self, store: Store) -> None:
        self.number += 1
        store._objects.put(f"bare-{self.number}", iter(self.buffers))

    def get_object(self, store: Store) -> None:
        store._objects.get(f"bare-{self.number}").buffer()


Way = tuple[Callable[[], None], Callable[[], None]]
"""The function to time, and a function that removes the files which it wrote."""


def interleaved(ways: dict[str, Way], repeat: int) -> dict[str, list[float]]:
    """The seconds of each way, by its name. The ways run one after the other, `repeat` times. One
    more repetition at the beginning is a warm-up and is not counted."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeat + 1):
        names = list(ways) if turn % 2 == 0 else list(reversed(ways))
        for name in names:
            measured, clean = ways[name]
            os.sync()
            began = time.perf_counter()
            measured()
            took = time.perf_counter() - began
            clean()
            if turn:
                times[name].append(took)
                report.say(f"{name}: {took:.3f} s")
    return times


def in_folder(subject: Subject, repeat: int) -> dict[str, list[float]]:
    store = open_store(str(subject.folder))

    def clean() -> None:
        store.delete_under("checkpoints")
        for path in subject.folder.glob("bare-*"):
            path.unlink()

    writing: dict[str, Way] = {
        "folder: bare, cached": (lambda: subject.write_file(durable=False), clean),
        "folder: bare": (lambda: subject.write_file(durable=True), clean),
        "folder: checkpoint": (lambda: subject.write_checkpoint(store), clean),
    }
    times = interleaved(writing, repeat)
    subject.write_checkpoint(store)
    (subject.folder / f"bare-{subject.number}").write_bytes(b"".join(subject.buffers))
    reading: dict[str, Way] = {
        "folder: load bare": (subject.read_file, lambda: None),
        "folder: load checkpoint": (lambda: subject.load_checkpoint(store), lambda: None),
        "folder: find newest, load": (
            lambda: subject.find_and_load_checkpoint(store),
            lambda: None,
        ),
    }
    times |= interleaved(reading, repeat)
    clean()
    return times


@contextmanager
def s3_store(folder: Path) -> Iterator[Store]:
    with running(folder) as server:
        os.environ.update(server.environment)
        yield open_store(f"s3://{BUCKET}/benchmark")


def in_s3(subject: Subject, folder: Path, repeat: int) -> dict[str, list[float]]:
    with s3_store(folder) as store:

        def clean() -> None:
            store.delete([info.name for info in store.list()])

        times = interleaved(
            {
                "s3: bare": (lambda: subject.put_object(store), clean),
                "s3: checkpoint": (lambda: subject.write_checkpoint(store), clean),
            },
            repeat,
        )
        subject.write_checkpoint(store)
        store._objects.put(f"bare-{subject.number}", iter(subject.buffers))
        times |= interleaved(
            {
                "s3: load bare": (lambda: subject.get_object(store), lambda: None),
                "s3: load checkpoint": (lambda: subject.load_checkpoint(store), lambda: None),
            },
            repeat,
        )
    return times


def table(result: dict[str, Any]) -> str:
    lines = [f"{result['nbytes'] / 1e6:.0f} MB, {result['machine']}"]
    lines += [f"{name:28} {median:8.3f} s" for name, median in result["medians_s"].items()]
    lines += [
        f"{name}: {ratio:.2f} times the bare bytes (allowed {ALLOWED[name]})"
        for name, ratio in result["ratios"].items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", default="102MB", help="the size of the model")
    parser.add_argument("--repeat", type=report.at_least_one, default=7)
    parser.add_argument("--no-s3", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("."), help="the disk to measure")
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=flags.folder) as name:
        folder = Path(name)
        (folder / "store").mkdir()
        (folder / "s3").mkdir()
        subject = Subject(pushed_nbytes(flags.size), folder / "store")
        times = in_folder(subject, flags.repeat)
        if not flags.no_s3 and binary() is not None:
            times |= in_s3(subject, folder / "s3", flags.repeat)
    medians = {name: round(statistics.median(all_), 4) for name, all_ in times.items()}
    result = {
        "nbytes": subject.nbytes,
        "machine": report.machine(),
        "times_s": times,
        "medians_s": medians,
        "ratios": {
            where: round(medians[f"{where}: checkpoint"] / medians[f"{where}: bare"], 3)
            for where in ALLOWED
            if f"{where}: bare" in medians
        },
    }
    report.give(result, table(result), flags.json)


if __name__ == "__main__":
    main()
