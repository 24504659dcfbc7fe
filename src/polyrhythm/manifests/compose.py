"""A file for Docker Compose: on one machine, a container with the lead and all servers, and a container
for each worker, whose number may change."""

from collections.abc import Mapping

from polyrhythm.core.cluster import CPU, GPU, Demand, threads_for
from polyrhythm.errors import UsageError
from polyrhythm.manifests.plan import REFUSED, Plan
from polyrhythm.manifests.yaml_text import listed, quoted, scalar

NAME = "compose"
_FOLDER = "/data"
_REFUSED = {
    **REFUSED,
    "runs_dir": f"runs are in the volume that is mounted at {_FOLDER}",
    "resources_per_server": "all servers are in one container",
}


def compose(job: str, given: Mapping[str, object], image: str) -> tuple[Plan, str]:
    """The file for a job. Raises UsageError."""
    plan = Plan.of(job, given, _REFUSED, "Docker Compose")
    if "," in str(given.get("devices", "")):
        raise UsageError("a manifest for Docker Compose has no list of --devices")
    groups = plan.worker_groups()
    names = [
        "worker" if number == 1 else f"worker-{number}" for number in range(1, len(groups) + 1)
    ]
    services = [_lead(plan, image)]
    services += [
        _worker(plan, image, name, *group) for name, group in zip(names, groups, strict=True)
    ]
    return plan, _head(plan) + "services:\n" + "\n".join(services) + "\nvolumes:\n  runs:\n"


def _head(plan: Plan) -> str:
    name = plan.name
    return f"""\
# The job {name} of polyrhythm on one machine: a lead with {plan.spec.servers} servers, and
# {plan.spec.workers} workers.
#
#   docker compose -f FILE up -d                                begin
#   docker compose -f FILE logs -f lead                         progress, and the result
#   docker compose -f FILE exec lead polyrhythm why             what does the job wait for?
#   docker compose -f FILE up -d --no-recreate --scale worker={plan.spec.workers + 2}
#                                                               more workers, or fewer
#   docker compose -f FILE exec lead polyrhythm stop {name}
#                                                               end it, and save its model
#   docker compose -f FILE cp lead:{_FOLDER}/runs/{name}/model.safetensors .
#   docker compose -f FILE down                                 remove it, but not its volume
#
# Whoever can read this file can join the job.
name: {name}

"""


def _lead(plan: Plan, image: str) -> str:
    words = plan.train(_code(plan), "--local-workers", 0, "--host", "0.0.0.0", "--insecure")
    again = (
        "restart: on-failure  # and it continues from the newest checkpoint"
        if plan.resumes
        else 'restart: "no"  # with --checkpoint-every it could continue'
    )
    return f"""\
  # The lead and all servers. The job is over when this container ends.
  lead:
{_service(plan, image, words, "10m", ["runs:/data"])}\
    working_dir: {_FOLDER}
    {again}
"""


def _worker(plan: Plan, image: str, name: str, count: int, demand: Demand) -> str:
    words = plan.worker(f"lead:{plan.port}", _code(plan))
    gpus = _gpus(demand)
    reserved = (
        f"""\
      resources:
        reservations:
          devices:
            - {{driver: nvidia, count: {gpus}, capabilities: [gpu]}}
"""
        if gpus
        else ""
    )
    return f"""\
  # Workers. One that dies is started again, while the others go on.
  {name}:
{_service(plan, image, words, "90s", [], threads_for(demand))}\
    restart: on-failure
    deploy:
      replicas: {count}
{reserved}"""


def _service(
    plan: Plan, image: str, words: list[str], grace: str, volumes: list[str], threads: int = 0
) -> str:
    """What all services have. A dollar sign is doubled, because Compose puts variables in its place."""
    command = listed((word.replace("$", "$$") for word in words), 6)
    lines = [
        f"image: {scalar(image)}",
        f"command: {command}",
        "init: true  # so that signals reach the program",
        f"stop_grace_period: {grace}",
        "environment:",
        f"  POLYRHYTHM_SECRET: {quoted(plan.secret.text.replace('$', '$$'))}",
        *([f'  OMP_NUM_THREADS: "{threads}"'] if threads else []),
    ]
    if plan.code.path:
        source = quoted(plan.code.path.replace("$", "$$"))
        target = quoted(_code(plan).replace("$", "$$"))
        bound = f"{{type: bind, source: {source}, target: {target}, read_only: true}}"
        volumes = [*volumes, bound]
    if volumes:
        lines += ["volumes:", *(f"  - {volume}" for volume in volumes)]
    return "".join(f"    {line}\n" for line in lines)


def _code(plan: Plan) -> str:
    """The job's code in the containers."""
    return f"/job/{plan.file}" if plan.code.path else plan.code.name


def _gpus(demand: Demand) -> int:
    for name, amount in demand.amounts:
        if name not in (CPU, GPU) or (amount != int(amount) and name == GPU):
            raise UsageError(
                f"{name}={amount:g}: for each worker, Docker Compose knows only CPU and whole"
                f" numbers of GPU"
            )
    if demand.labels:
        raise UsageError(
            f"{demand}: Docker Compose runs on one machine, and chooses none by labels"
        )
    return int(demand.resources.get(GPU, 0))
