"""A batch script for Slurm: the lead and all servers run on the first node, and each task of `srun` is a
worker."""

import re
import shlex
from collections.abc import Iterable, Mapping

from polyrhythm.core.cluster import CPU, GPU, Demand
from polyrhythm.errors import UsageError
from polyrhythm.manifests.plan import REFUSED, Plan, program

NAME = "slurm"
_NOTICE_S = 300
"""The notice, in seconds, that the script gets before the end of its time."""
_BYTES_PER_MB = 1 << 20
_REFUSED = {
    **REFUSED,
    "resources_per_server": "servers run on the first node, beside the lead",
}
_PORT = re.compile(r"--port \S+")


def slurm(job: str, given: Mapping[str, object], _: str) -> tuple[Plan, str]:
    """The script for a job. Raises UsageError."""
    plan = Plan.of(job, given, _REFUSED, "Slurm")
    groups = plan.worker_groups()
    if len(groups) > 1:
        raise UsageError(
            "--resources-per-worker is for all workers under Slurm: leave the number of workers out"
        )
    return plan, _script(plan, groups[0][1])


def _script(plan: Plan, demand: Demand) -> str:
    code = plan.code.path or plan.code.name
    local = ("--local-workers", 0, "--host", "0.0.0.0", "--insecure")
    lead = _command(plan.train(code, *local))
    worker = _command(plan.worker("$HOST:$PORT", code))
    port = plan.given.get("port") or "$((20000 + SLURM_JOB_ID % 10000))"
    return f"""\
#!/bin/bash
# The job {plan.name} of polyrhythm: a lead with {plan.spec.servers} servers on the first node, and
# {plan.spec.workers} workers.
#
#   sbatch --time=4:00:00 FILE              begin; flags of sbatch override the lines below
#   tail -f {plan.name}-JOBID.log                  progress, and the result
#   polyrhythm why                          what does the job wait for? (in the same folder)
#   polyrhythm stop {plan.name}                    end it, and save its model
#
#SBATCH --job-name={plan.name}
#SBATCH --output={plan.name}-%j.log
#SBATCH --open-mode=append
#SBATCH --ntasks={plan.spec.workers}
{_resources(demand)}\
# The job goes on when a node is lost. If that is the first one, it begins again{_from(plan)}.
#SBATCH --no-kill
#SBATCH --requeue
# The script gets SIGTERM before its time is over.
#SBATCH --signal=B:TERM@{_NOTICE_S}

# Workers join with this secret. Slurm passes it on in the environment.
POLYRHYTHM_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')
export POLYRHYTHM_SECRET
HOST=$(hostname)
PORT={port}  # so that two jobs can share a node

{lead} &
lead=$!

{_notice(plan)}
# A task that fails does not end the others. srun does not take over the CPUs per task from sbatch.
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
srun --no-kill --kill-on-bad-exit=0 --wait=0 \\
  {worker} &

# A signal interrupts 'wait', so wait until the lead has really ended.
while kill -0 $lead 2>/dev/null; do
  wait $lead
  status=$?
done
wait
exit $status
"""


def _from(plan: Plan) -> str:
    return " from its newest checkpoint" if plan.resumes else ""


def _notice(plan: Plan) -> str:
    if not plan.resumes:
        return """\
# Without checkpoints, the job shuts down cleanly when its time is over, and its model is saved.
trap 'kill -TERM $lead' TERM
"""
    return f"""\
# When its time is over, the job makes a checkpoint and goes back into the queue. If it cannot, it ends
# cleanly, and its model is saved. After scancel the job does not come back: its state is not RUNNING
# any more, and Slurm has sent SIGTERM to the lead, too.
notice() {{
  trap '' TERM  # Slurm repeats it
  local state
  state=$(squeue --noheader --format=%T --jobs "$SLURM_JOB_ID")
  [ "$state" = RUNNING ] || return
  {shlex.quote(program())} checkpoint "$HOST:$PORT" && scontrol requeue "$SLURM_JOB_ID" && return
  kill -TERM $lead
}}
trap notice TERM
"""


def _command(words: Iterable[str]) -> str:
    """The words as a command with one line for each flag. The shell inserts HOST and PORT."""
    lines = [shlex.quote(program())]
    for word in list(words)[1:]:
        quoted = f'"{word}"' if word == "$HOST:$PORT" else shlex.quote(word)
        lines.append(f"\\\n  {quoted}" if word.startswith("--") else quoted)
    return _PORT.sub('--port "$PORT"', " ".join(lines), count=1)


def _resources(demand: Demand) -> str:
    amounts = demand.resources
    for name, amount in amounts.items():
        if name not in (CPU, GPU, "memory"):
            raise UsageError(f"{name}={amount:g}: Slurm knows CPU, GPU and memory")
        if amount != int(amount):
            raise UsageError(f"{name}={amount:g}: Slurm accepts only whole numbers of {name}")
    if demand.labels:
        raise UsageError(
            f"--resources-per-worker {demand}: choose nodes by flags of sbatch, such as --constraint"
        )
    cpus = max(1, int(amounts.get(CPU, 1)))
    lines = [f"#SBATCH --cpus-per-task={cpus}"]
    if amounts.get(GPU):
        lines.append(f"#SBATCH --gpus-per-task={int(amounts[GPU])}")
    if "memory" in amounts:
        megabytes = -(-int(amounts["memory"]) // (cpus * _BYTES_PER_MB))
        lines.append(f"#SBATCH --mem-per-cpu={megabytes}M")
    return "".join(f"{line}\n" for line in lines)
