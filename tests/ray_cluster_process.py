"""A small Ray cluster for tests: a head with 4 CPUs, and nodes that tests add and remove.

`python ray_cluster_process.py FOLDER PID HEAD`: the cluster ends when process PID has ended, or after
half an hour. HEAD: further arguments of the head, in JSON. It takes requests at the socket `requests`
of the folder. The file `address` has its address when it is ready. All files of Ray are in the folder.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

from tests.ray_nodes import kill_users_of

_LONGEST_S = 1800.0
_HEAD = {"num_cpus": 4, "include_dashboard": False, "object_store_memory": 80 << 20}
_QUICK = {
    "worker_niceness": 0,
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 8,
}
"""The processes of jobs have the same priority as other tests, and a raylet that was killed counts as
dead after 4 s."""


def serve(cluster: Any, socket: Path) -> None:
    """Take requests, and answer each with its result or with the exception that it raised."""
    nodes: dict[int, Any] = {}
    with Listener(str(socket), "AF_UNIX") as listener:
        while True:
            with contextlib.suppress(EOFError, OSError), listener.accept() as connection:
                request = connection.recv()
                try:
                    answer = serve_one(cluster, nodes, request)
                except Exception as error:
                    answer = RuntimeError(f"{type(error).__name__}: {error}")
                connection.send(answer)


def serve_one(cluster: Any, nodes: dict[int, Any], request: Any) -> Any:
    """A dict of arguments adds a node, and the process id of its raylet removes it. A signal goes to the
    control service (GCS), which can be started again."""
    if isinstance(request, dict):
        node = cluster.add_node(wait=False, object_store_memory=80 << 20, **request)
        pid = node.all_processes["raylet"][0].process.pid
        nodes[pid] = node
        return pid, node.node_id
    if request == signal.SIGKILL:
        cluster.head_node.kill_gcs_server()
    elif request == signal.SIGSTOP:
        cluster.head_node.all_processes["gcs_server"][0].process.send_signal(signal.SIGSTOP)
    elif request == "restart control":
        cluster.head_node.start_gcs_server()
    elif request in nodes:
        cluster.remove_node(nodes.pop(request), allow_graceful=False)
    return None


def reap(cluster: Any) -> None:
    """Ask for the status of all processes of the nodes. A killed raylet would stay a zombie, which
    its workers take for alive."""
    for node in cluster.list_all_nodes():
        with contextlib.suppress(RuntimeError):  # the node is just starting its processes
            for processes in node.all_processes.values():
                for each in processes:
                    each.process.poll()


def main(folder: Path, parent: int, head: dict[str, Any]) -> None:
    os.environ["RAY_TMPDIR"] = str(folder)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={**_HEAD, "_system_config": _QUICK, **head},
        shutdown_at_exit=False,
    )
    try:
        threading.Thread(target=serve, args=(cluster, folder / "requests"), daemon=True).start()
        ready = folder / "starting"
        ready.write_text(cluster.address)
        ready.rename(folder / "address")
        until_s = time.monotonic() + _LONGEST_S
        while time.monotonic() < until_s and Path(f"/proc/{parent}").exists():
            reap(cluster)
            time.sleep(0.5)
    finally:
        cluster.shutdown()
        kill_users_of(folder)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
