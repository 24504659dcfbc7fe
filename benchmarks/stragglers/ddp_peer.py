"""Trains with DistributedDataParallel on gloo: every process makes the same optimizer step on the
mean gradient.

A communication hook makes the steps as long as the task demands. DDP calls the hook when the
backward pass is over (a model this small has only one bucket of gradients). The hook sleeps for the
rest of the step's time, and then starts DDP's own all-reduce. The optimizer's step is not a part of
that time, and neither is the fold of polyrhythm's servers.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from benchmarks.stragglers.task import WORKERS, Evaluator, Numbers, Task, answer

_LOOK_S = 0.01


def member(rank: int, task: Task, store: str, steps: Any, began: Any) -> None:
    # the parent process handles Ctrl-C and ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=WORKERS,
        timeout=timedelta(seconds=120),
    )
    images = task.images()
    plain, optimizer = task.build()
    model = nn.parallel.DistributedDataParallel(plain)
    dist.barrier()
    if rank == 0:
        began.value = time.monotonic_ns()
    evaluator = Evaluator(task, plain, images) if rank == 0 else None
    pacer = task.pacer(rank)

    def padded(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        pacer.pace(task.numbers.batch_size)
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]

    model.register_comm_hook(None, padded)
    for batch, labels in task.batches(images, rank):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if evaluator is not None:
            steps.value += 1
            evaluator.look()
        pacer.resume(time.monotonic_ns())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--max-seconds", type=float, required=True)
    args = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    context = mp.get_context("spawn")
    steps, began = context.Value("q", 0), context.Value("q", 0)
    with tempfile.TemporaryDirectory() as folder:
        numbers = Numbers.of(args.job, args.rate, args.batch)
        task = Task(args.job, args.seed, args.target, Path(folder) / "verdict", numbers)
        store = f"{folder}/store"
        processes = [
            context.Process(target=member, args=(rank, task, store, steps, began), daemon=True)
            for rank in range(WORKERS)
        ]
        for process in processes:
            process.start()
        try:
            until_s = float("inf")
            while not task.verdict.exists() and time.monotonic() < until_s:
                if not all(process.is_alive() for process in processes):
                    sys.exit("a process failed; its error is on stderr")
                if began.value and until_s == float("inf"):
                    until_s = time.monotonic() + args.max_seconds
                time.sleep(_LOOK_S)
            print(answer(task, began.value, WORKERS * steps.value), flush=True)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.join()


if __name__ == "__main__":
    main()
