"""Every row of the tables of options refuses a job, with its sentence."""

from typing import Any

import pytest

from polyrhythm.core.combinations import (
    OF_COMMANDS,
    OF_MACHINES,
    SHARING,
    WITHOUT_EFFECT,
    Rule,
    broken,
)
from polyrhythm.core.sync.registry import POLICIES, traits_of
from polyrhythm.wire.messages import JobSpec

STATISTICS: dict[str, Any] = {"kind": "statistics"}
RULES = (*OF_MACHINES, *OF_COMMANDS, *SHARING, *WITHOUT_EFFECT)
# one for each row, in the order of the tables
EXAMPLES: tuple[tuple[dict[str, Any], str], ...] = (
    (
        {"sync": "asp", "kind": "local", "outer": "nesterov"},
        "--outer needs --sync bsp or psp or fsp: the outer optimizer applies the average of"
        " local steps in a round, and asp does not average local steps",
    ),
    (
        {"kind": "local", "outer": "nesterov", "updater": "addition"},
        "--outer needs --updater optimizer: plain addition has no average",
    ),
    (
        {"outer": "nesterov"},
        "--outer needs --kind local: with --kind gradient the servers run the job's own optimizer",
    ),
    (
        {"sync": "psp"},
        "--sync psp cannot fold kind 'gradient': it takes local. For kind 'gradient' give"
        " --sync bsp or fsp or ssp or ssp-restart or asp or bspb or bspv or bspg",
    ),
    (
        {**STATISTICS, "updater": "addition"},
        "--updater addition needs --kind gradient: the servers add statistics to rows, not to"
        " parameters",
    ),
    (
        {**STATISTICS, "wire_dtype": "bf16"},
        "--wire-dtype bf16 needs --kind gradient or local: with kind statistics, rounding"
        " errors of the differences would add up",
    ),
    (
        {**STATISTICS, "push": "int8"},
        "--push int8 needs --kind gradient or local: with kind statistics, rounding errors of"
        " the differences would add up",
    ),
    (
        {**STATISTICS, "sync": "asp", "read_ahead": True},
        "--sync asp --kind statistics is for comparison only, and has no --read-ahead: use"
        " --sync fsp or --sync bsp",
    ),
    (
        {**STATISTICS, "sync": "asp", "replicas": 1},
        "--sync asp --kind statistics is for comparison only, and has no --replicas: use"
        " --sync fsp or --sync bsp",
    ),
    (
        {**STATISTICS, "sync": "asp", "placement": "aware"},
        "--sync asp --kind statistics is for comparison only, and has no --placement aware: use"
        " --sync fsp or --sync bsp",
    ),
    (
        {"sync": "asp", "placement": "elastic"},
        "--placement elastic needs --sync bsp or psp or fsp or bspb or bspv or bspg: it measures when"
        " the contributions of a round arrive, and asp has no rounds",
    ),
    (
        {**STATISTICS, "on_nan": "skip"},
        "--on-nan skip needs --kind gradient or local: a contribution that is left"
        " out would be missing in every later sum",
    ),
    (
        {"sync": "ssp:4", "weights": "workers"},
        "--weights workers needs --sync bsp or psp or fsp or bspb or bspv or bspg: under ssp:4"
        " contributions are folded one by one, so they are not weighed",
    ),
    (
        {"abandon": "50ms"},
        "--abandon needs --sync fsp and --kind gradient: local steps cannot be undone",
    ),
    (
        {**STATISTICS, "data_private": True},
        "--data-private is not built for kind statistics: give --kind gradient or local",
    ),
    (
        {"data_private": True, "migrate": "lease"},
        "--migrate lease cannot be used with --data-private, because no other worker can read"
        " these points: leave --migrate out, and give --share-data if they may be sent to"
        " others",
    ),
    (
        {"migrate": "sometimes"},
        "--migrate 'sometimes' is not known: give one of auto, off, lease, full, blocking",
    ),
    (
        {"sync": "asp", "migrate": "full"},
        "--migrate full needs a policy with rounds, such as fsp: under asp leases move only"
        " when workers join or leave",
    ),
    (
        {"read_ahead": True},
        "--read-ahead needs --sync asp: under bsp a worker waits before each step anyway",
    ),
    (
        {"sync": "fsp", "timer": "off", "deterministic": True},
        "--deterministic needs --sync bsp: under fsp the speed of the workers decides what a"
        " fold contains",
    ),
    (
        {"deterministic": True},
        "--deterministic waits for every worker: it needs --timer off",
    ),
    (
        {"optimizer_on": "phones", "timer": "off"},
        "--optimizer-on 'phones' is not known: give servers or workers",
    ),
    (
        {"sync": "fsp", "optimizer_on": "workers", "timer": "off"},
        "--optimizer-on workers needs --sync bsp and --kind gradient: only there does every"
        " worker make the same steps",
    ),
    (
        {"optimizer_on": "workers"},
        "--optimizer-on workers needs --timer off: every worker makes the step of every round, so"
        " a round waits for all",
    ),
    ({"local_steps": 3}, "--local-steps needs --kind local"),
    (
        {"respawn": True, "on_error": "end"},
        "--respawn restarts a worker that fails, so it needs --on-error go-on",
    ),
    (
        {"replicas": 3, "servers": 3},
        "--replicas is 3: each copy of a slice needs another server, and --servers is 3; give 0"
        " to 2",
    ),
    (
        {"in_place": True, "servers": 2},
        "--in-place reads the server's own memory: it needs --servers 1, --kind gradient, a"
        " policy with rounds (bsp), a local link and --wire-dtype same",
    ),
    (
        {"in_place": True, "optimizer_on": "workers", "timer": "off"},
        "--in-place needs --optimizer-on servers: with workers, the servers do not hold parameters",
    ),
    (
        {"on_loss": "resume"},
        "--on-loss resume needs checkpoints: give --checkpoint-every 60s",
    ),
    (
        {"share_data": True, "migrate": "full"},
        "it needs --data-private: in this job every worker can read the whole data set, so"
        " no worker has private points to share",
    ),
    (
        {"share_data": True, "data_private": True, "migrate": "off"},
        "it contradicts --migrate off, with which no points move",
    ),
    (
        {"share_data": True, "data_private": True, "migrate": "auto"},
        "under --sync bsp no points move by themselves: give --migrate full",
    ),
    (
        {"async_scale": "root"},
        "--async-scale root has no effect: under --sync bsp a round is one step of the optimizer",
    ),
    (
        {"async_momentum": "contribution"},
        "--async-momentum contribution has no effect: under --sync bsp a round is one step of"
        " the optimizer",
    ),
)


@pytest.mark.parametrize(
    ("rule", "fields", "sentence"),
    [(rule, *example) for rule, example in zip(RULES, EXAMPLES, strict=True)],
    ids=[rule.option for rule in RULES],
)
def test_a_row_refuses_a_job_with_its_sentence(
    rule: Rule, fields: dict[str, Any], sentence: str
) -> None:
    job = JobSpec(job="j", **fields)
    assert list(broken([rule], job, traits_of(job.sync), POLICIES.values())) == [sentence]


@pytest.mark.parametrize("sync", ["bsp", "psp", "fsp", "ssp:4", "ssp-restart:4", "asp", "bspg:8"])
def test_no_row_refuses_a_job_with_default_options(sync: str) -> None:
    traits = traits_of(sync)
    job = JobSpec(job="j", sync=sync, kind=traits.preferred_kind)
    assert list(broken(RULES, job, traits, POLICIES.values())) == []


@pytest.mark.parametrize("replicas", [-1, 1])
def test_the_only_server_has_no_replicas(replicas: int) -> None:
    job = JobSpec(job="j", replicas=replicas)
    (sentence,) = broken(OF_COMMANDS, job, traits_of(job.sync))
    assert sentence.endswith("give 0")


@pytest.mark.parametrize(
    "changes",
    [{"sync": "asp"}, {"kind": "local"}, {"link": "tcp"}, {"wire_dtype": "bf16"}, {"servers": 2}],
)
def test_parameters_are_read_in_place_only_in_the_memory_of_one_server(
    changes: dict[str, Any],
) -> None:
    in_place = {"in_place": True, "servers": 1}
    assert not list(broken(OF_COMMANDS, JobSpec(job="j", **in_place), traits_of("bsp")))
    job = JobSpec(job="j", **{**in_place, **changes})
    assert len(list(broken(OF_COMMANDS, job, traits_of(job.sync)))) == 1
