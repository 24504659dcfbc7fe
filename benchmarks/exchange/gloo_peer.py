"""Measures the rounds per second of torch.distributed's gloo all-reduce, the peer called "gloo".

What is measured: each of W processes holds one float32 tensor of N bytes. In a round every process
calls `all_reduce` (SUM) on its tensor in place, over TCP on the loopback interface. There is no
barrier between rounds. DistributedDataParallel does the same to its gradients on CPUs.

Why it is a fair peer: as with a parameter server, every process gives N bytes in each round and
receives the N bytes of the sum in its own memory, and no gradient is computed. Gloo gets every
advantage: one flat tensor (no bucketing), reduced in place (no copy into or out of a bucket), on
connections that were opened in warm-up rounds. Each process sets torch to one thread. Torch's
default number of threads gives the same speed (medians of alternating runs differ by less than 3%),
because the all-reduce runs on gloo's own threads.

An in-place SUM multiplies the tensor by W in each round, so float32 would overflow after many
rounds. Therefore the rounds are divided into stretches that are short enough. Before each stretch
the tensor is filled again and a barrier aligns the processes. After it every process checks every
element. Neither the filling nor the check is timed. The time of a stretch is from the start of the
first process to the end of the last process.
"""

import argparse
import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TCPStore = dist.TCPStore  # type: ignore[attr-defined]  # public, but not marked as exported
# the time limit of one operation of gloo; the loss of a process is noticed much sooner
TIMEOUT = timedelta(seconds=120)


def member(rank: int, workers: int, nbytes: int, port: int, orders: Connection) -> None:
    """The main function of one of the W processes. It receives numbers of rounds, and runs a
    stretch for each."""
    # the parent process handles Ctrl-C, and decides when to end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workers, timeout=TIMEOUT)
    tensor = torch.empty(nbytes // 4, dtype=torch.float32)
    with contextlib.suppress(EOFError, ConnectionError):  # end when the parent process is gone
        while rounds := orders.recv():
            tensor.fill_(rank + 1)
            dist.barrier()
            started = time.perf_counter()
            for _ in range(rounds):
                dist.all_reduce(tensor)
            ended = time.perf_counter()
            expected = float(workers * (workers + 1) // 2) * float(workers) ** (rounds - 1)
            low, high = (float(value) for value in tensor.aminmax())
            if not expected * (1 - 1e-4) <= low <= high <= expected * (1 + 1e-4):
                raise RuntimeError(f"rank {rank}: sums of {low} to {high}, not {expected}")
            orders.send((started, ended))
    dist.destroy_process_group()


class Group:
    """The W processes, from the view of the parent process."""

    def __init__(self, workers: int, connections: list[Connection]) -> None:
        self.connections = connections
        self.stretch = int(96 / math.log2(max(workers, 2)))  # float32 holds W ** stretch <= 2 ** 96

    def measure(self, rounds: int) -> float:
        """Run the rounds, and check their result. Returns the rounds per second."""
        elapsed = 0.0
        for first in range(0, rounds, self.stretch):
            for connection in self.connections:
                connection.send(min(self.stretch, rounds - first))
            try:
                times = [connection.recv() for connection in self.connections]
            except (EOFError, ConnectionError) as error:
                raise RuntimeError("a process failed; its error is on stderr") from error
            elapsed += max(ended for _, ended in times) - min(started for started, _ in times)
        return rounds / elapsed if rounds else 0.0


@contextlib.contextmanager
def group(nbytes: int, workers: int) -> Iterator[Group]:
    """Start W processes that are connected over loopback. They are ended after the `with` block."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # a free port
    context = mp.get_context("spawn")
    connections: list[Connection] = []
    processes = []
    try:
        for rank in range(workers):
            ours, theirs = context.Pipe()
            arguments = (rank, workers, nbytes, store.port, theirs)
            process = context.Process(target=member, args=arguments, daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            connections.append(ours)
        yield Group(workers, connections)
        for connection in connections:
            connection.send(0)
        for process in processes:
            process.join(10)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for process in processes:
            process.kill()
            process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure gloo's all-reduce over loopback.")
    defaults = {"nbytes": 102_000_000, "workers": 4, "rounds": 20, "warmup": 5, "repeat": 1}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--serve", action="store_true", help='answer {"rounds": n} lines on stdin')
    args = parser.parse_args()
    if args.nbytes < 4 or args.nbytes % 4 or min(args.workers, args.rounds, args.repeat) < 1:
        parser.error("nbytes must be a multiple of 4; workers, rounds and repeat at least 1")
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stdout is for results only: the output of libraries goes to stderr
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with group(args.nbytes, args.workers) as members:
        members.measure(args.warmup)
        if args.serve:
            for line in sys.stdin:
                speed = members.measure(int(json.loads(line)["rounds"]))
                print(json.dumps({"rounds_per_s": speed}), file=results, flush=True)
            return
        speeds = [members.measure(args.rounds) for _ in range(args.repeat)]
        answer = {"peer": "gloo", "nbytes": args.nbytes, "workers": args.workers}
        answer |= {"rounds": args.rounds, "rounds_per_s": speeds}
        print(json.dumps(answer), file=results, flush=True)


if __name__ == "__main__":
    main()
