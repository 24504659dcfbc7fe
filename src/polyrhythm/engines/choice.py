"""The engines that a user can choose, and what a job needs to run on each."""

from polyrhythm.core.cluster import HERE
from polyrhythm.engines.engine import ClusterOptions, Engine
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec

LOOPBACK = "127.0.0.1"
LOCAL, INLINE, RAY = "local", "inline", "ray"
ENGINES = (LOCAL, INLINE, RAY)


def check_engine(name: str) -> None:
    if name not in ENGINES:
        raise UsageError(f"there is no engine {name!r}: choose one of {', '.join(ENGINES)}")


def check_engine_runs(
    name: str,
    job: JobSpec,
    cluster: ClusterOptions | None = None,
    *,
    elastic: bool = False,
    host: str = LOOPBACK,
) -> None:
    """Raise an error if the engine cannot do what the job asks for. `elastic`: the job takes in further
    workers when there is room for them. `host`: the option --host."""
    if name == INLINE and job.respawn:
        raise UsageError(
            "--respawn restarts processes that have died, and --engine inline runs the job in one"
            " process: leave one of the two out"
        )
    cluster = cluster or ClusterOptions()
    if name == RAY:
        if host != LOOPBACK:
            raise UsageError(
                "--host and --engine ray contradict each other: every process listens on the address"
                " that Ray knows of its node; leave --host out"
            )
        if cluster.detach and cluster.address == HERE:
            raise UsageError(
                "--detach and --address local contradict each other: that cluster ends with this command"
            )
        return
    if elastic:
        raise UsageError(
            f"--workers with two numbers needs --engine ray, where a cluster may get room later: with"
            f" --engine {name} give one number; others may join with 'polyrhythm worker'"
        )
    for flag, given in (
        ("--detach", cluster.detach),
        ("--address", cluster.address),
        ("--resources-per-worker", cluster.per_worker),
        ("--resources-per-server", cluster.per_server),
    ):
        if given:
            raise UsageError(f"{flag} needs --engine ray: with --engine {name} there is no cluster")


def choose_engine(name: str = LOCAL, cluster: ClusterOptions | None = None) -> Engine:
    """`local`: every server and worker is a process of this host. `inline`: all of them run in this
    process, for debugging. `ray`: each is an actor of a Ray cluster."""
    check_engine(name)
    if name == INLINE:
        from polyrhythm.engines.inline import InlineEngine  # this imports torch: it takes seconds

        return InlineEngine()
    if name == RAY:
        try:
            import ray  # noqa: F401
        except ImportError:
            raise UsageError(
                "--engine ray needs Ray, which is not installed: run pip install 'polyrhythm[ray]'"
            ) from None
        from polyrhythm.engines.ray import RayEngine

        return RayEngine(cluster or ClusterOptions())
    from polyrhythm.engines.local import LocalEngine

    return LocalEngine()
