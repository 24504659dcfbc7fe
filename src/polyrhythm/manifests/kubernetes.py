"""A manifest for Kubernetes: the lead is a Job, further servers are a StatefulSet, and workers are Jobs
whose parallelism may change. No operator is needed."""

from collections.abc import Mapping

from polyrhythm.core.cluster import CPU, GPU, Demand, threads_for
from polyrhythm.errors import UsageError
from polyrhythm.manifests.plan import REFUSED, Plan, text_of
from polyrhythm.manifests.yaml_text import block, listed, scalar

NAME = "kubernetes"
_FOLDER = "/data"
"""Where the volume with the runs is, which is the working folder of the lead."""
_CODE = "/job"
_MOST_CODE = 900_000
"""The longest file, in bytes: a ConfigMap has at most 1 MiB."""
_DRAIN_S = 600
"""The grace period of servers: the time for moving their slices to other servers, and much more."""
_LEAVE_S = 90
"""The grace period of workers: a step, and the acknowledgement of its contribution."""
_WORKER_DEATHS = 100
_LEAD_DEATHS = 20
_REFUSED = {
    **REFUSED,
    "runs_dir": f"runs are in the volume that is mounted at {_FOLDER}",
}


def kubernetes(job: str, given: Mapping[str, object], image: str) -> tuple[Plan, str]:
    """The manifest of a job. Raises UsageError."""
    plan = Plan.of(job, given, _REFUSED, "Kubernetes", servers_apart=True)
    if "," in str(given.get("devices", "")):
        raise UsageError(
            "a manifest for Kubernetes has no list of --devices: every worker has its own, such as"
            " --devices cuda with --resources-per-worker GPU=1"
        )
    on_gpus = str(given.get("devices", "")).startswith("cuda")
    if on_gpus and not all(demand.resources.get(GPU) for demand in plan.per_worker):
        raise UsageError(
            "--devices cuda needs --resources-per-worker GPU=1 for all workers; without --devices each"
            " takes the GPU that it gets, or the CPU"
        )
    return plan, _Written(plan, image).text()


class _Written:
    def __init__(self, plan: Plan, image: str) -> None:
        self._plan = plan
        self._image = image
        self._lead = f"{plan.name}-lead"
        self._file = f"{_CODE}/{plan.file}" if plan.code.path else ""

    def text(self) -> str:
        plan = self._plan
        parts = [self._secret()]
        if self._file:
            parts.append(self._config())
        parts += [self._volume(), self._service(), self._lead_job()]
        if plan.spec.servers > 1:
            parts += [self._servers(), self._budget()]
        groups = plan.worker_groups()
        parts += [self._workers(number, *group) for number, group in enumerate(groups, start=1)]
        return self._head() + "---\n" + "---\n".join(parts)

    # -- parts -------------------------------------------------------------------------------------

    def _head(self) -> str:
        plan = self._plan
        store = (
            f"""#
# The credentials of the store are taken from a Secret of yours, if it exists:
#   kubectl create secret generic {plan.name}-store --from-literal=AWS_ACCESS_KEY_ID=... \\
#     --from-literal=AWS_SECRET_ACCESS_KEY=...
"""
            if "store" in plan.given
            else ""
        )
        return f"""\
# The job {plan.name} of polyrhythm: a lead, {plan.spec.servers} servers, the first of which runs
# beside the lead, and {plan.spec.workers} workers. Their containers have the image {self._image}.
#
#   kubectl apply -f FILE                                    begin
#   kubectl logs -f job/{self._lead}                          progress, and the result
#   kubectl exec job/{self._lead} -- polyrhythm why           what does the job wait for?
#   kubectl exec job/{self._lead} -- polyrhythm stop {plan.name}     end it, and save its model
#   kubectl delete job,statefulset,service,pdb,secret,configmap -l app.kubernetes.io/instance={plan.name}
#                                                            remove it, but not its volume
#
# The model, the journal and the logs are in the volume {plan.name}-runs, in the folder runs/{plan.name}.
{store}#
# Whoever can read this file or its Secret can join the job. Links between the containers are
# authenticated with it, and are not encrypted.
"""

    def _secret(self) -> str:
        return f"""\
apiVersion: v1
kind: Secret
{self._metadata(self._plan.name)}
stringData:
  secret: {scalar(self._plan.secret.text)}
"""

    def _config(self) -> str:
        text = text_of(self._plan.code)
        if len(text.encode()) > _MOST_CODE:
            raise UsageError(
                f"{self._plan.code.name} is too large for a ConfigMap: build its modules into the image"
                f" (--image), and leave {_MOST_CODE} bytes or less in this file"
            )
        return f"""\
# The code of the job. Modules that it imports must be in the image.
apiVersion: v1
kind: ConfigMap
{self._metadata(self._plan.name)}
data:
  {scalar(self._plan.file)}: {block(text, 4)}
"""

    def _volume(self) -> str:
        return f"""\
apiVersion: v1
kind: PersistentVolumeClaim
{self._metadata(f"{self._plan.name}-runs")}
spec:
  accessModes: [ReadWriteOnce]
  resources:
    requests:
      storage: 10Gi
"""

    def _service(self) -> str:
        return f"""\
# The name by which servers and workers find the lead.
apiVersion: v1
kind: Service
{self._metadata(self._lead)}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    {self._labels("lead", 4)}
  ports:
    - name: lead
      port: {self._plan.port}
"""

    def _lead_job(self) -> str:
        plan = self._plan
        local = ("--local-workers", 0, "--local-servers", 1, "--host", "0.0.0.0", "--insecure")
        words = plan.train(self._file or plan.code.name, *local)
        again = (
            "# If the lead dies, it is started again, and continues from the newest checkpoint."
            if plan.resumes
            else "# If the lead dies, the job ends. With --checkpoint-every it could continue."
        )
        return f"""\
# The lead, and the first server. The job is over when this container ends.
apiVersion: batch/v1
kind: Job
{self._metadata(self._lead, "lead")}
spec:
  {again}
  backoffLimit: {_LEAD_DEATHS if plan.resumes else 0}
  podFailurePolicy:
    rules:
      # wrong options, or a job that has reached its goal with a fault: not to be repeated
      - action: FailJob
        onExitCodes: {{operator: In, values: [2, 3, 4]}}
{_disruptions(6) if plan.resumes else ""}\
  template:
    metadata:
      labels:
        {self._labels("lead", 8)}
    spec:
      restartPolicy: Never
{self._pod(words, plan.per_server, _DRAIN_S, 6, leads=True)}"""

    def _servers(self) -> str:
        plan = self._plan
        words = plan.server(f"{self._lead}:{plan.port}")
        return f"""\
# The other servers. One that gets SIGTERM moves its slices to the others before it ends.
apiVersion: apps/v1
kind: StatefulSet
{self._metadata(f"{plan.name}-server", "server")}
spec:
  replicas: {plan.spec.servers - 1}
  serviceName: {self._lead}  # servers are found through the lead
  podManagementPolicy: Parallel
  selector:
    matchLabels:
      {self._labels("server", 6)}
  template:
    metadata:
      labels:
        {self._labels("server", 8)}
    spec:
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {self._labels("server", 14)}
{self._pod(words, plan.per_server, _DRAIN_S, 6)}"""

    def _budget(self) -> str:
        return f"""\
# Nodes are drained one server at a time.
apiVersion: policy/v1
kind: PodDisruptionBudget
{self._metadata(f"{self._plan.name}-server", "server")}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {self._labels("server", 6)}
"""

    def _workers(self, number: int, count: int, demand: Demand) -> str:
        plan = self._plan
        name = f"{plan.name}-worker" + (f"-{number}" if number > 1 else "")
        words = plan.worker(f"{self._lead}:{plan.port}", self._file or plan.code.name)
        return f"""\
# Workers. Their number may change while the job trains:
#   kubectl patch job {name} -p '{{"spec": {{"parallelism": {count + 2}}}}}'
apiVersion: batch/v1
kind: Job
{self._metadata(name, "worker")}
spec:
  parallelism: {count}
  # A worker that dies is replaced, while the others go on. Nodes that are taken away do not count.
  backoffLimit: {_WORKER_DEATHS}
  podFailurePolicy:
    rules:
      - action: FailJob
        onExitCodes: {{operator: In, values: [2]}}
{_disruptions(6)}\
  template:
    metadata:
      labels:
        {self._labels("worker", 8)}
    spec:
      restartPolicy: Never
{self._pod(words, demand, _LEAVE_S, 6)}"""

    # -- what several parts have -------------------------------------------------------------------

    def _metadata(self, name: str, component: str = "") -> str:
        return f"metadata:\n  name: {name}\n  labels:\n    {self._labels(component, 4)}"

    def _labels(self, component: str, indent: int) -> str:
        labels = {"name": "polyrhythm", "instance": self._plan.name, "component": component}
        lines = [f"app.kubernetes.io/{key}: {value}" for key, value in labels.items() if value]
        return f"\n{'':{indent}}".join(lines)

    def _pod(
        self, words: list[str], demand: Demand, grace_s: int, indent: int, *, leads: bool = False
    ) -> str:
        """The part of a pod after its `spec`. A dollar sign is doubled, because Kubernetes replaces
        $(NAME)."""
        code = words[1] != "server" and self._file
        mounts = [("code", _CODE)] if code else []
        mounts += [("runs", _FOLDER)] if leads else []
        volumes = {
            "code": f"configMap: {{name: {self._plan.name}}}",
            "runs": f"persistentVolumeClaim: {{claimName: {self._plan.name}-runs}}",
        }
        lines = [
            f"terminationGracePeriodSeconds: {grace_s}",
            "enableServiceLinks: false  # their variables could be taken for settings",
            "automountServiceAccountToken: false",
            "securityContext: {runAsNonRoot: true, runAsUser: 1000, runAsGroup: 1000, fsGroup: 1000}",
            *_node_selector(demand),
            "containers:",
            f"  - name: {words[1]}",
            f"    image: {scalar(self._image)}",
            f"    command: {listed((word.replace('$', '$$') for word in words), indent + 6)}",
            *([f"    workingDir: {_FOLDER}"] if leads else []),
            "    env:",
            "      - name: POLYRHYTHM_SECRET",
            f"        valueFrom: {{secretKeyRef: {{name: {self._plan.name}, key: secret}}}}",
            "      - name: OMP_NUM_THREADS",
            f'        value: "{threads_for(demand)}"',
            *(self._store_credentials() if words[1] != "worker" else []),
            *(f"    {line}" for line in _resources(demand)),
        ]
        if mounts:
            lines += ["    volumeMounts:"]
            lines += [f"      - {{name: {name}, mountPath: {path}}}" for name, path in mounts]
            lines += ["volumes:"]
            for name, _ in mounts:
                lines += [f"  - name: {name}", f"    {volumes[name]}"]
        return "".join(f"{'':{indent}}{line}\n" for line in lines)

    def _store_credentials(self) -> list[str]:
        if "store" not in self._plan.given:
            return []
        return [
            "    envFrom:",
            f"      - secretRef: {{name: {self._plan.name}-store, optional: true}}",
        ]


def _disruptions(indent: int) -> str:
    lines = [
        "# a node that is drained or taken away is not a failure",
        "- action: Ignore",
        "  onPodConditions:",
        '    - {type: DisruptionTarget, status: "True"}',
    ]
    return "".join(f"{'':{indent}}{line}\n" for line in lines)


def _resources(demand: Demand) -> list[str]:
    """The resources that a container requests. A GPU is a limit, because Kubernetes does not share
    GPUs between containers."""
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for name, amount in demand.amounts:
        if name == CPU:
            requests["cpu"] = f"{amount:g}"
        elif name == "memory":
            requests["memory"] = str(int(amount))
        elif amount != int(amount):
            raise UsageError(f"{name}={amount:g}: Kubernetes accepts only whole numbers of {name}")
        elif name == GPU:
            limits["nvidia.com/gpu"] = str(int(amount))
        elif "/" in name:
            limits[name] = str(int(amount))
        else:
            raise UsageError(
                f"{name}={amount:g}: Kubernetes knows CPU, GPU, memory, and names with a domain, such as"
                f" example.com/{name}"
            )
    lines = ["resources:"]
    for kind, amounts in (("requests", requests), ("limits", limits)):
        if amounts:
            lines.append(f"  {kind}:")
            lines += [f'    {name}: "{amount}"' for name, amount in amounts.items()]
    return lines


def _node_selector(demand: Demand) -> list[str]:
    if not demand.labels:
        return []
    return ["nodeSelector:", *(f"  {name}: {scalar(value)}" for name, value in demand.labels)]
