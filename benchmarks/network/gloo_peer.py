"""One member of gloo's all-reduce, on one host of the laboratory.

    python -m benchmarks.network.gloo_peer MODEL RANK MEMBERS ADDRESS:PORT

As in `benchmarks/exchange/gloo_peer.py`, gloo gets every advantage: one flat tensor, reduced in
place. The tensor holds zeros, so that no sum overflows.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.network.shapes import nbytes_of

TCPStore = dist.TCPStore  # type: ignore[attr-defined]  # public, but not marked as exported
TIMEOUT = timedelta(seconds=300)


def main() -> None:
    model, rank, members, address = sys.argv[1:]
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    host, port = address.split(":")
    store = TCPStore(host, int(port), is_master=rank == "0", timeout=TIMEOUT)
    dist.init_process_group(
        "gloo", store=store, rank=int(rank), world_size=int(members), timeout=TIMEOUT
    )
    tensor = torch.zeros(nbytes_of(model) // 4)
    folder = Path(os.environ["POLYRHYTHM_LABORATORY"])
    with (folder / f"gloo-{rank}.steps").open("wb", buffering=0) as steps:
        while True:
            dist.all_reduce(tensor)
            steps.write(b"%.6f\n" % time.monotonic())


if __name__ == "__main__":
    main()
