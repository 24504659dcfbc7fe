"""Measures the rounds per second of a parameter server made of Ray actors, the peer called "ray".

What is measured: in a round each of W worker actors pulls the float32 parameters (N bytes), copies
them into a buffer of its own, and pushes a gradient of N bytes, which was made before. The server
actor adds all W gradients to the parameters, which the workers pull in the next round. No gradient
is computed.

Why it is a fair peer: it is the synchronous parameter server of Ray's own documentation, with
improvements. Only object refs pass through the driver. Arrays go through the shared-memory object
store: they are copied into it when a task returns them, and read from it without a copy. Ray sends
arrays of up to 100 KiB inside its messages, which is its default. Rounds are submitted ahead, so
that scheduling overlaps with the work; the refs keep each round synchronous. The server sums block
by block, so that the blocks stay in the cache. The memory of the store is touched before the start.
Actors request no CPU, so that all of them can run. With `--documented` two improvements are left
out: the server uses `np.stack(gradients).sum(axis=0)`, and the memory of the store is not touched
before.

After every measurement, the parameters and the last pull of each worker are checked. This is not
timed.
"""

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(
    32
)  # otherwise Ray writes a token to the home folder

import ray

Array = npt.NDArray[np.float32]
BLOCK = 1 << 16  # how many elements the server sums at a time: 256 KiB fit the cache of a core
AHEAD = 4  # how many rounds are submitted before the driver waits for the first one


def extremes(array: Array) -> tuple[float, float]:
    return float(array.min()), float(array.max())


class ParameterServer:
    """Holds the parameters as one array."""

    def __init__(self, size: int, documented: bool) -> None:
        self.parameters: Array = np.full(size, 0, dtype=np.float32)
        self.documented = documented

    def apply_gradients(self, *gradients: Array) -> Array:
        if self.documented and gradients:
            self.parameters += np.stack(gradients).sum(axis=0)
            return self.parameters
        for start in range(0, self.parameters.size, BLOCK):
            block = self.parameters[start : start + BLOCK]
            for gradient in gradients:
                block += gradient[start : start + BLOCK]
        return self.parameters


class Worker:
    """Pulls the parameters, and pushes a gradient that was made once."""

    def __init__(self, size: int, value: float) -> None:
        self.gradient: Array = np.full(size, value, dtype=np.float32)
        self.pulled: Array = np.full(size, -1, dtype=np.float32)

    def exchange(self, weights: Array) -> Array:
        np.copyto(self.pulled, weights)
        return self.gradient

    def check(self) -> tuple[float, float]:
        return extremes(self.pulled)


class Exchange:
    """The actors, the ref of the newest parameters, and the number of rounds so far."""

    def __init__(self, nbytes: int, workers: int, documented: bool) -> None:
        actor: Any = ray.remote(num_cpus=0)
        self.server = actor(ParameterServer).remote(nbytes // 4, documented)
        self.workers = [actor(Worker).remote(nbytes // 4, rank + 1) for rank in range(workers)]
        self.per_round = workers * (workers + 1) // 2
        self.weights: Any = self.server.apply_gradients.remote()
        self.done = 0

    def measure(self, rounds: int) -> float:
        """Run the rounds and check their result. Returns the rounds per second."""
        ray.wait([self.weights], fetch_local=False)
        started = time.perf_counter()
        pending = []
        for _ in range(rounds):
            gradients = (worker.exchange.remote(self.weights) for worker in self.workers)
            self.weights = self.server.apply_gradients.remote(*gradients)
            pending.append(self.weights)
            if len(pending) > AHEAD:
                ray.wait([pending.pop(0)], fetch_local=False)
        ray.wait([self.weights], fetch_local=False)
        elapsed = time.perf_counter() - started
        self.done += rounds
        wanted = float(self.done * self.per_round)
        checks = [(extremes(ray.get(self.weights)), wanted)]
        if rounds:
            pulled = ray.get([worker.check.remote() for worker in self.workers])
            checks += [(found, wanted - self.per_round) for found in pulled]
        if any(found != (value, value) for found, value in checks):
            raise RuntimeError(f"wrong sums after {self.done} rounds: (found, wanted) = {checks}")
        return rounds / elapsed


@contextlib.contextmanager
def cluster(nbytes: int, workers: int, documented: bool) -> Iterator[None]:
    """Start Ray for this program alone. After the `with` block it is stopped, and leaves no files
    or processes."""
    folder = tempfile.mkdtemp(prefix="ray-peer-")
    try:
        ray.init(
            address="local",
            num_cpus=0,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=(1 << 28) + (2 * workers + 2 * AHEAD) * nbytes,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
            _system_config={"preallocate_plasma_memory": not documented},
        )
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a parameter server of Ray actors.")
    defaults = {"nbytes": 102_000_000, "workers": 4, "rounds": 20, "warmup": 5, "repeat": 1}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--serve", action="store_true", help='answer {"rounds": n} lines on stdin')
    parser.add_argument(
        "--documented", action="store_true", help="as in Ray's documentation, without our tuning"
    )
    args = parser.parse_args()
    if args.nbytes < 4 or args.nbytes % 4 or min(args.workers, args.rounds, args.repeat) < 1:
        parser.error("nbytes must be a multiple of 4; workers, rounds and repeat at least 1")
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stdout is for results only: the output of libraries goes to stderr
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with cluster(args.nbytes, args.workers, args.documented):
        exchange = Exchange(args.nbytes, args.workers, args.documented)
        exchange.measure(args.warmup)
        if args.serve:
            for line in sys.stdin:
                speed = exchange.measure(int(json.loads(line)["rounds"]))
                print(json.dumps({"rounds_per_s": speed}), file=results, flush=True)
            return
        speeds = [exchange.measure(args.rounds) for _ in range(args.repeat)]
        answer = {"peer": "ray", "nbytes": args.nbytes, "workers": args.workers}
        answer |= {"rounds": args.rounds, "rounds_per_s": speeds}
        print(json.dumps(answer), file=results, flush=True)


if __name__ == "__main__":
    main()
