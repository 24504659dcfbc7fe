"""A Slurm cluster of one node, made of Debian's slurm-wlm, in a folder of the test."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.processes import wait_until

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "squeue", "srun")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
_CPUS = 4
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobRequeue=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    def __init__(self, folder: Path) -> None:
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def __call__(self, *words: object, cwd: Path | None = None) -> str:
        """Run a command of Slurm, and return what it prints."""
        done = subprocess.run(
            [str(word) for word in words],
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """The state of a job, such as PENDING."""
        return self("squeue", "--noheader", "--states=all", "--format=%T", "--jobs", job)


@contextmanager
def cluster(folder: Path) -> Iterator[Slurm]:
    """Run the cluster in the `with` statement. Its jobs end with it."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    host = socket.gethostname().partition(".")[0]
    conf = _CONF.format(host=host, ports=_free_ports(), folder=folder, cpus=_CPUS)
    (folder / "slurm.conf").write_text(conf)
    version = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True).stdout
    old = tuple(map(int, version.split()[-1].split(".")[:2])) < (23, 11)
    plugin = "cgroup/v1\nCgroupAutomount=no" if old else "disabled"
    (folder / "cgroup.conf").write_text(f"CgroupPlugin={plugin}\n")
    slurm, daemons = Slurm(folder), []
    try:
        for name in ("slurmctld", "slurmd"):
            command = [name, "-D", "-f", str(folder / "slurm.conf")]
            with (folder / f"{name}.out").open("w") as output:
                daemons.append(
                    subprocess.Popen(
                        command,
                        env=slurm.environment,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
        # the commands of Slurm fail until the controller listens
        ready = ["scontrol", "ping"]
        wait_until(
            lambda: (
                subprocess.run(ready, env=slurm.environment, capture_output=True).returncode == 0
            ),
            "the controller answers",
        )
        wait_until(lambda: "idle" in slurm("sinfo", "--noheader"), "the node is idle")
        yield slurm
        slurm("scancel", "--signal=KILL", "--full", "--user=root")
        slurm("scancel", "--user=root")
        wait_until(lambda: not slurm("squeue", "--noheader"), "all jobs have ended")
    finally:
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in daemons:
            daemon.wait(30)


def _free_ports() -> list[int]:
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        return [first.getsockname()[1], second.getsockname()[1]]
