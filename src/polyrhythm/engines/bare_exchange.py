"""Measures the fastest exchange that this host allows: with the processes, copies and additions of
a job, but with one byte as the signal, and without frames, machines and journal. `bench exchange`
prints which share of this speed a job reaches.

This is a separate program, so that nothing else runs in the process.
"""

import argparse
import json
import mmap
import os
import socket
import sys
import threading
import time

import torch

from polyrhythm.io.tcp import bound_buffers
from polyrhythm.tensors.copying import copy

_SLICE = 1 << 18
"""How many float32 values are added at a time: 1 MiB."""


def _shared(count: int) -> torch.Tensor:
    return torch.frombuffer(memoryview(mmap.mmap(-1, max(4, count * 4))), dtype=torch.float32)[
        :count
    ]


def _bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy())  # type: ignore[arg-type]


class _Server:
    """Adds the pushes of all workers. The next round begins when all workers have pushed."""

    def __init__(self, count: int, workers: int, versions: list[torch.Tensor]) -> None:
        self.versions = versions
        self.round = 0
        self._workers = workers
        self._starts = list(range(0, count, _SLICE))
        self._locks = [threading.Lock() for _ in self._starts]
        self._fresh = [True] * len(self._starts)
        self._arrived = 0
        self._turn = threading.Condition()

    def add(self, index: int, gradient: torch.Tensor) -> None:
        start = self._starts[index]
        stop = start + gradient.numel()
        now, after = self.versions[self.round % 2], self.versions[(self.round + 1) % 2]
        with self._locks[index]:
            if self._fresh[index]:
                torch.add(now[start:stop], gradient, out=after[start:stop])
                self._fresh[index] = False
            else:
                after[start:stop].add_(gradient)

    def add_all(self, worker: int, push: torch.Tensor) -> None:
        shift = len(self._starts) * worker // self._workers
        for step in range(len(self._starts)):
            index = (step + shift) % len(self._starts)
            self.add(index, push[self._starts[index] : self._starts[index] + _SLICE])

    def arrive(self, release: list[socket.socket] | None) -> None:
        with self._turn:
            self._arrived += 1
            if self._arrived < self._workers:
                if release is None:
                    mine = self.round
                    self._turn.wait_for(lambda: self.round > mine)
                return
            self._arrived = 0
            self._fresh = [True] * len(self._starts)
            self.round += 1
            self._turn.notify_all()
        for sock in release or []:
            sock.send(b"!")

    @property
    def slices(self) -> int:
        return len(self._starts)


def _serve(
    args: argparse.Namespace,
    server: _Server,
    worker: int,
    sock: socket.socket,
    push: torch.Tensor,
    socks: list[socket.socket],
) -> None:
    torch.set_num_threads(1)
    buffer = memoryview(bytearray(_SLICE * 4))
    incoming = torch.frombuffer(buffer, dtype=torch.float32)
    count = push.numel()
    for _ in range(args.warmup + args.rounds):
        if args.link == "local":
            if not sock.recv(1):
                return
            server.add_all(worker, push)
            server.arrive(socks)
            continue
        for index in range(server.slices):
            size = min(_SLICE, count - index * _SLICE)
            sock.recv_into(buffer, size * 4, socket.MSG_WAITALL)
            server.add(index, incoming[:size])
        server.arrive(None)
        version = server.versions[server.round % 2]
        sock.sendall(_bytes(version))


def _work(
    args: argparse.Namespace,
    sock: socket.socket,
    push: torch.Tensor,
    versions: list[torch.Tensor],
    value: float,
    expected: float,
) -> None:
    torch.set_num_threads(1)
    own = torch.zeros(push.numel())
    gradient = torch.full((push.numel(),), value)
    copy(push, gradient)
    for round_ in range(args.warmup + args.rounds):
        if round_ == args.warmup:
            began_s = time.perf_counter()
        if args.link == "local":
            if not args.in_place:
                copy(push, gradient)
            sock.send(b"!")
            sock.recv(1)
            if not args.in_place:
                copy(own, versions[(round_ + 1) % 2])
        else:
            copy(push, gradient)
            sock.sendall(_bytes(push))
            sock.recv_into(_bytes(own), own.numel() * 4, socket.MSG_WAITALL)
    took_s = time.perf_counter() - began_s
    final = versions[(args.warmup + args.rounds) % 2] if args.in_place else own
    if not bool((final == expected).all()):
        raise SystemExit("the bare loop has computed a wrong sum")
    sock.sendall(json.dumps(args.rounds / took_s).encode())


def _pair(link: str) -> tuple[socket.socket, socket.socket]:
    if link == "local":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    for sock in (ours, theirs):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound_buffers(sock)
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nbytes", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--link", choices=("local", "tcp"), required=True)
    parser.add_argument("--in-place", action="store_true")
    args = parser.parse_args()
    sys.setswitchinterval(1e-4)
    count = args.nbytes // 4
    versions = [_shared(count), _shared(count)]
    pushes = [_shared(count) for _ in range(args.workers)]
    pairs = [_pair(args.link) for _ in range(args.workers)]
    expected = (args.warmup + args.rounds) * args.workers * (args.workers + 1) / 2
    for worker, (_, theirs) in enumerate(pairs):
        if os.fork() == 0:
            _work(args, theirs, pushes[worker], versions, worker + 1.0, expected)
            os._exit(0)
    socks = [ours for ours, _ in pairs]
    server = _Server(count, args.workers, versions)
    threads = [
        threading.Thread(target=_serve, args=(args, server, w, socks[w], pushes[w], socks))
        for w in range(args.workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rates = []
    for ours, theirs in pairs:
        theirs.close()
        rates.append(json.loads(ours.makefile("rb").read().lstrip(b"!")))
    print(json.dumps({"rounds_per_s": sorted(rates)[len(rates) // 2]}))


if __name__ == "__main__":
    main()
