"""One end of a TCP link whose receiver measures its rate: `receive ADDRESS PORT SENDERS` prints what it
has measured of each sender, and the throughput of its host; `send NAME ADDRESS PORT FRAMES NBYTES`
prints what the kernel says about the rate."""

import json
import socket
import statistics
import struct
import sys
import threading
import time

from polyrhythm.core.placement.bursts import Bursts
from polyrhythm.core.placement.network import Network
from polyrhythm.errors import LinkEnded
from polyrhythm.io.tcp import dial_tcp, tcp_link
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import MEMBER
from polyrhythm.wire.messages import Alive, Contribution

_TCP_INFO_NBYTES, _DELIVERY_RATE = 232, 160
"""Where `tcpi_delivery_rate` is in the kernel's `struct tcp_info`."""


def receive(address: str, port: int, senders: int) -> dict[str, float]:
    bursts, lock, network = Bursts(), threading.Lock(), Network()

    def measure(peer: str, began_ns: int, ended_ns: int, nbytes: int) -> None:
        with lock:
            bursts.add(peer, began_ns, ended_ns, nbytes)

    def read(sock: socket.socket) -> None:
        link = tcp_link(sock, "unknown")
        link.agree(Digest.XXH3, MEMBER)
        link.measure_with(measure)
        try:
            while True:
                message, _ = link.receive()
                link.peer = f"w{message.worker}"
        except LinkEnded:
            link.dispose()

    with socket.create_server((address, port)) as listener:
        print("listening", flush=True)
        threads = [
            threading.Thread(target=read, args=(listener.accept()[0],)) for _ in range(senders)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    network.learn("s0", "receiver", "receiver")
    for worker in range(senders):
        network.learn(f"w{worker}", f"w{worker}", f"w{worker}")
    now_ns = time.monotonic_ns()
    report = bursts.take(now_ns)
    if report is not None:
        network.record("s0", report, now_ns)
        network.settle(now_ns)
    rates = {f"w{worker}": network.rate(f"w{worker}", "receiver") or 0 for worker in range(senders)}
    return {**rates, "throughput": network.throughput("receiver") or 0}


def send(name: str, address: str, port: int, frames: int, nbytes: int) -> dict[str, float]:
    link = dial_tcp(address, port, "s0")
    link.agree(Digest.XXH3, MEMBER)
    link.send(Alive(worker=int(name[1:])))
    payload, rates = memoryview(bytes(nbytes)), []
    for frame in range(frames):
        contribution = Contribution(worker=int(name[1:]), sequence=frame, slices=1)
        left = threading.Event()
        link.send(contribution, (payload,), done=left.set)
        left.wait()
        info = link._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_NBYTES)
        rates.append(struct.unpack_from("Q", info, _DELIVERY_RATE)[0])
    link.close()
    link.dispose()
    return {"delivery_rate": statistics.median(rates)}


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "receive":
        print(json.dumps(receive(words[0], int(words[1]), int(words[2]))))
    else:
        print(json.dumps(send(words[0], words[1], *map(int, words[2:]))))
