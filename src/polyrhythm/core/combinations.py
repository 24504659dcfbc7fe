"""One table that says which options of a job work together. A row names an option, what the option
requires, and the error message for a job that does not meet the requirement.

*A row applies to a job that has the option, and refuses the job if the row's condition is false.*
The rows of `OF_MACHINES` also apply to simulated jobs. The rows of `OF_COMMANDS` do not: they are
about processes, links and checkpoints, which only a real job has. The rows of `WITHOUT_EFFECT`
refuse no job; their sentences are hints.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from msgspec.structs import fields, replace

from polyrhythm.core.kinds import (
    ON_SERVERS,
    ON_WORKERS,
    keeps_rows,
    parse_outer,
    steps_on_servers,
    steps_on_workers,
)
from polyrhythm.core.link_kinds import may_have_references
from polyrhythm.core.migration import AUTO, DELIVERING, LEASE, MIGRATIONS, OFF, migration_of
from polyrhythm.core.placement.schemes import ELASTIC, MEASURING
from polyrhythm.core.sync.policy import PolicyEntry, Traits
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec

Condition = Callable[[JobSpec, Traits], bool]
_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(JobSpec)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row. The sentence `says` may contain `{job}`, `{value}` (the value of the option),
    `{kinds}` (the kinds that the policy supports) and `{policies}` (the policies that satisfy
    `under`)."""

    option: str
    """The option, by the name of its field in the job."""
    when: Condition | None = None
    """A function that says whether the row applies to a job. None: the row applies to jobs that
    give the option a value other than its default."""
    under: Condition | None = None
    """The policies with which the option works; None: all."""
    needs: Callable[[JobSpec], bool] | None = None
    """What else the option requires."""
    suggests: Condition | None = None
    """The policies that the message suggests; None: all that satisfy `under`."""
    says: str | Callable[[JobSpec], str]

    def refuses(self, job: JobSpec, traits: Traits) -> bool:
        given = getattr(job, self.option) != _DEFAULTS[self.option]
        if not (given if self.when is None else self.when(job, traits)):
            return False
        wrong_policy = self.under is not None and not self.under(job, traits)
        return wrong_policy or (self.needs is not None and not self.needs(job))

    def sentence(self, job: JobSpec, traits: Traits, entries: Collection[PolicyEntry]) -> str:
        if not isinstance(self.says, str):
            return self.says(job)
        named = self.suggests or self.under or (lambda job, traits: True)
        return self.says.format(
            job=job,
            value=getattr(job, self.option),
            kinds=", ".join(sorted(traits.kinds)),
            policies=" or ".join(each.name for each in entries if named(job, each.traits)),
        )


def broken(
    rules: Collection[Rule], job: JobSpec, traits: Traits, entries: Collection[PolicyEntry] = ()
) -> Iterator[str]:
    """The error messages of all rules that this job breaks. `entries`: the policies that a message
    may suggest."""
    for rule in rules:
        if rule.refuses(job, traits):
            yield rule.sentence(job, traits, entries)


def check(
    rules: Collection[Rule], job: JobSpec, traits: Traits, entries: Collection[PolicyEntry] = ()
) -> None:
    """Raise UsageError with the message of the first rule that this job breaks."""
    for sentence in broken(rules, job, traits, entries):
        raise UsageError(sentence)


def _rounds(job: JobSpec, traits: Traits) -> bool:
    return traits.rounds


def _without_rows(job: JobSpec) -> bool:
    return not keeps_rows(job.kind)


def _rounds_if_rows(job: JobSpec, traits: Traits) -> bool:
    return traits.rounds or not keeps_rows(job.kind)


def _has_outer(job: JobSpec, traits: Traits) -> bool:
    return parse_outer(job.outer) is not None


def _averages(job: JobSpec, traits: Traits) -> bool:
    """Whether the policy has rounds in which the local steps of workers are averaged."""
    return traits.rounds and any(map(steps_on_workers, traits.kinds))


def _repeatable(job: JobSpec, traits: Traits) -> bool:
    """Whether every round contains exactly one step of every worker, whatever their speeds are."""
    return traits.rounds and not (traits.timed or traits.plans_steps or traits.gathers)


_ROUNDING = (
    " needs --kind gradient or local: with kind statistics, rounding errors of the differences would"
    " add up"
)
_COMPARED = (
    "--sync {job.sync} --kind {job.kind} is for comparison only, and has no %s: use --sync fsp or"
    " --sync bsp"
)

OF_MACHINES = (
    Rule(
        option="outer",
        when=_has_outer,
        under=_averages,
        says="--outer needs --sync {policies}: the outer optimizer applies the average of local steps"
        " in a round, and {job.sync} does not average local steps",
    ),
    Rule(
        option="outer",
        when=_has_outer,
        needs=lambda job: job.updater != "addition",
        says="--outer needs --updater optimizer: plain addition has no average",
    ),
    Rule(
        option="outer",
        when=_has_outer,
        needs=lambda job: steps_on_workers(job.kind),
        says="--outer needs --kind local: with --kind {job.kind} the servers run the job's own"
        " optimizer",
    ),
    Rule(
        option="kind",
        when=lambda job, traits: True,
        under=lambda job, traits: job.kind in traits.kinds,
        suggests=lambda job, traits: job.kind in traits.kinds and _rounds_if_rows(job, traits),
        says="--sync {job.sync} cannot fold kind {job.kind!r}: it takes {kinds}. For kind {job.kind!r}"
        " give --sync {policies}",
    ),
    Rule(
        option="updater",
        when=lambda job, traits: job.updater == "addition",
        needs=_without_rows,
        says="--updater addition needs --kind gradient: the servers add statistics to rows, not to"
        " parameters",
    ),
    Rule(option="wire_dtype", needs=_without_rows, says="--wire-dtype {value}" + _ROUNDING),
    Rule(option="push", needs=_without_rows, says="--push {value}" + _ROUNDING),
    Rule(option="read_ahead", under=_rounds_if_rows, says=_COMPARED % "--read-ahead"),
    Rule(option="replicas", under=_rounds_if_rows, says=_COMPARED % "--replicas"),
    Rule(
        option="placement",
        when=lambda job, traits: job.placement in MEASURING,
        under=_rounds_if_rows,
        says=_COMPARED % "--placement {value}",
    ),
    Rule(
        option="placement",
        when=lambda job, traits: job.placement == ELASTIC,
        under=_rounds,
        says="--placement elastic needs --sync {policies}: it measures when the contributions of a round"
        " arrive, and {job.sync} has no rounds",
    ),
    Rule(
        option="on_nan",
        when=lambda job, traits: job.on_nan == "skip",
        needs=_without_rows,
        says="--on-nan skip needs --kind gradient or local: a contribution that is left"
        " out would be missing in every later sum",
    ),
    Rule(
        option="weights",
        under=_rounds,
        says="--weights {value} needs --sync {policies}: under {job.sync} contributions are folded one"
        " by one, so they are not weighed",
    ),
    Rule(
        option="abandon",
        under=lambda job, traits: traits.timed,
        needs=lambda job: steps_on_servers(job.kind),
        says="--abandon needs --sync {policies} and --kind gradient: local steps cannot be undone",
    ),
    Rule(
        option="data_private",
        needs=_without_rows,
        says="--data-private is not built for kind statistics: give --kind gradient or local",
    ),
    Rule(
        option="data_private",
        needs=lambda job: job.migrate != LEASE,
        says="--migrate lease cannot be used with --data-private, because no other worker can read these"
        " points: leave --migrate out, and give --share-data if they may be sent to others",
    ),
    Rule(
        option="migrate",
        needs=lambda job: job.migrate in MIGRATIONS,
        says=f"--migrate {{value!r}} is not known: give one of {', '.join(MIGRATIONS)}",
    ),
    Rule(
        option="migrate",
        under=lambda job, traits: traits.rounds or job.migrate == AUTO,
        says="--migrate {value} needs a policy with rounds, such as fsp: under {job.sync} leases move"
        " only when workers join or leave",
    ),
    Rule(
        option="read_ahead",
        under=lambda job, traits: not traits.asks_before_steps,
        says="--read-ahead needs --sync {policies}: under {job.sync} a worker waits before each step"
        " anyway",
    ),
    Rule(
        option="deterministic",
        under=_repeatable,
        says="--deterministic needs --sync {policies}: under {job.sync} the speed of the workers"
        " decides what a fold contains",
    ),
    Rule(
        option="deterministic",
        needs=lambda job: job.timer == OFF,
        says="--deterministic waits for every worker: it needs --timer off",
    ),
    Rule(
        option="optimizer_on",
        needs=lambda job: job.optimizer_on in (ON_SERVERS, ON_WORKERS),
        says="--optimizer-on {value!r} is not known: give servers or workers",
    ),
    Rule(
        option="optimizer_on",
        under=_repeatable,
        needs=lambda job: job.kind == "gradient" and job.updater != "addition",
        says="--optimizer-on workers needs --sync {policies} and --kind gradient: only there does every"
        " worker make the same steps",
    ),
    Rule(
        option="optimizer_on",
        needs=lambda job: job.timer == OFF,
        says="--optimizer-on workers needs --timer off: every worker makes the step of every round, so"
        " a round waits for all",
    ),
)


def _too_many_replicas(job: JobSpec) -> str:
    most = f"give 0 to {job.servers - 1}" if job.servers > 1 else "give 0"
    return (
        f"--replicas is {job.replicas}: each copy of a slice needs another server, and --servers is"
        f" {job.servers}; {most}"
    )


OF_COMMANDS = (
    Rule(
        option="local_steps",
        needs=lambda job: steps_on_workers(job.kind),
        says="--local-steps needs --kind local",
    ),
    Rule(
        option="respawn",
        needs=lambda job: job.on_error != "end",
        says="--respawn restarts a worker that fails, so it needs --on-error go-on",
    ),
    Rule(
        option="replicas",
        when=lambda job, traits: True,
        needs=lambda job: 0 <= job.replicas < job.servers,
        says=_too_many_replicas,
    ),
    Rule(
        option="in_place",
        under=_rounds,
        needs=lambda job: (
            job.servers == 1
            and steps_on_servers(job.kind)
            and may_have_references(job.link)
            and job.wire_dtype == "same"
        ),
        says="--in-place reads the server's own memory: it needs --servers 1, --kind gradient, a policy"
        " with rounds (bsp), a local link and --wire-dtype same",
    ),
    Rule(
        option="in_place",
        needs=lambda job: job.optimizer_on == ON_SERVERS,
        says="--in-place needs --optimizer-on servers: with workers, the servers do not hold parameters",
    ),
    Rule(
        option="on_loss",
        when=lambda job, traits: job.on_loss == "resume",
        needs=lambda job: bool(job.checkpoint_every),
        says="--on-loss resume needs checkpoints: give --checkpoint-every 60s",
    ),
)

SHARING = (
    Rule(
        option="share_data",
        needs=lambda job: job.data_private,
        says="it needs --data-private: in this job every worker can read the whole data set, so"
        " no worker has private points to share",
    ),
    Rule(
        option="share_data",
        needs=lambda job: job.migrate != OFF,
        says="it contradicts --migrate off, with which no points move",
    ),
    Rule(
        option="share_data",
        under=lambda job, traits: migration_of(job, traits) in DELIVERING,
        says="under --sync {job.sync} no points move by themselves: give --migrate full",
    ),
)
"""Why a worker with `--share-data` sends no points."""


def sharing_fault(job: JobSpec, traits: Traits) -> str | None:
    """Why a worker with `--share-data` sends no points in this job; None if it may send them."""
    return next(broken(SHARING, replace(job, share_data=True), traits), None)


_ONE_STEP = " has no effect: under --sync {job.sync} a round is one step of the optimizer"
WITHOUT_EFFECT = (
    Rule(
        option="async_scale",
        under=lambda job, traits: not traits.rounds,
        says="--async-scale {value}" + _ONE_STEP,
    ),
    Rule(
        option="async_momentum",
        under=lambda job, traits: not traits.rounds,
        says="--async-momentum {value}" + _ONE_STEP,
    ),
)
