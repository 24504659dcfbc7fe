"""`--outer` is parsed to the description of an optimizer. What cannot work is refused with one
line."""

import pytest

from polyrhythm.core.kinds import (
    ELEMENTWISE,
    EXAMPLE,
    NOT_ELEMENTWISE,
    only_scales,
    outer_rate,
    parse_outer,
)
from polyrhythm.core.sync.registry import choose_kind, choose_policy
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        (EXAMPLE, "SGD", {"lr": 0.7, "momentum": 0.9, "nesterov": True}),
        ("nesterov", "SGD", {"lr": 0.7, "momentum": 0.9, "nesterov": True}),
        ("nesterov:momentum=0.5", "SGD", {"lr": 0.7, "momentum": 0.5, "nesterov": True}),
        ("sgd:lr=1", "SGD", {"lr": 1.0}),
        (" SGD: lr=0.5, momentum=0.8 ", "SGD", {"lr": 0.5, "momentum": 0.8}),
        ("adam:lr=1e-3", "Adam", {"lr": 1e-3}),
        ("Adam:lr=0.1,beta2=0.95", "Adam", {"lr": 0.1, "betas": [0.9, 0.95]}),
        ("adamw:lr=0.1,beta1=0.8,amsgrad=true", "AdamW", {"betas": [0.8, 0.999], "amsgrad": True}),
        ("rmsprop:lr=0.1,centered=False", "RMSprop", {"lr": 0.1, "centered": False}),
    ],
)
def test_a_text_names_an_optimizer_and_its_options(
    text: str, name: str, options: dict[str, object]
) -> None:
    spec = parse_outer(text)
    assert spec is not None and spec.name == name
    (group,) = spec.groups
    assert {key: group.get(key) for key in options} == options
    assert group["maximize"] is True, "the averaged change is a negative gradient"


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_elementwise_optimizer_is_accepted_by_its_name(name: str) -> None:
    spec = parse_outer(f"{name.lower()}:lr=0.25")
    assert spec is not None and spec.name == name
    assert outer_rate(f"{name.lower()}:lr=0.25") == 0.25


def test_off_is_no_outer_optimizer() -> None:
    assert parse_outer("off") is None
    assert outer_rate("off") is None


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("sgd:lr=1", True),
        ("sgd:lr=0.5,momentum=0", True),
        ("sgd:lr=1,momentum=0.1", False),
        ("sgd:lr=1,weight_decay=0.1", False),
        (EXAMPLE, False),
        ("adam:lr=1", False),
    ],
)
def test_only_sgd_without_momentum_and_decay_is_a_scaled_average(text: str, plain: bool) -> None:
    spec = parse_outer(text)
    assert spec is not None
    assert only_scales(spec) is plain


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "choose one of nesterov, sgd, adam"),
        ("momentum:lr=1", "choose one of nesterov, sgd, adam"),
        ("sgd", "it needs a learning rate, such as sgd:lr=1"),
        ("adam:beta1=0.5", "it needs a learning rate, such as adam:lr=1"),
        ("sgd:0.5", "'0.5' is not NAME=NUMBER"),
        ("sgd:lr=fast", "lr is 'fast', which is not a number"),
        ("sgd:lr=0", "lr must be above 0"),
        ("sgd:lr=-1", "lr must be above 0"),
        ("sgd:lr=nan", "lr must be above 0"),
        ("sgd:lr=inf", "lr must be above 0 and at most 10000"),
        ("sgd:lr=1,momentum=1", "momentum must be at least 0 and less than 1"),
        ("adam:lr=1,beta2=1", "beta2 must be at least 0 and less than 1"),
        ("adam:lr=1,eps=-1", "eps must be a number, and at least 0"),
        ("adam:lr=1,momentum=0.9", "adam has no option 'momentum'; it has lr, beta1, beta2"),
        ("adam:lr=1,amsgrad=2", "amsgrad must be true or false"),
        ("sgd:lr=1,maximize=true", "sgd has no option 'maximize'"),
        ("nesterov:momentum=0", "nesterov needs a momentum above 0"),
    ],
)
def test_other_texts_are_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_outer(text)
    assert f"--outer {text!r} cannot be used: " in str(refusal.value)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", NOT_ELEMENTWISE)
def test_optimizers_that_are_not_elementwise_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} cannot run on servers, .* slices .*: .*{name} "):
        parse_outer(f"{name.lower()}:lr=1")


@pytest.mark.parametrize("sync", ["bsp", "psp", "fsp"])
@pytest.mark.parametrize("kind", ["auto", "local"])
def test_outer_goes_with_rounds_of_local_steps(sync: str, kind: str) -> None:
    job = choose_kind(JobSpec(job="j", sync=sync, kind=kind, outer=EXAMPLE))
    assert job.kind == "local"
    choose_policy(job)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "gradient"}, "--outer needs --kind local: with --kind gradient"),
        ({"sync": "asp"}, "--outer needs --sync bsp or psp or fsp"),
        ({"sync": "ssp:3"}, "and ssp:3 does not average local steps"),
        ({"sync": "ssp-restart:3"}, "and ssp-restart:3 does not average local steps"),
        ({"sync": "bspb"}, "and bspb does not average local steps"),
        ({"sync": "asp", "kind": "gradient"}, "--outer needs --sync bsp or psp or fsp"),
        ({"sync": "fsp", "abandon": "50ms"}, "--outer needs --kind local"),
        ({"kind": "local", "updater": "addition"}, "--outer needs --updater optimizer"),
        ({"updater": "addition"}, "--outer needs --updater optimizer"),
        ({"outer": "lbfgs:lr=1"}, "LBFGS cannot run on servers"),
    ],
)
def test_jobs_that_cannot_have_an_outer_optimizer_are_refused(
    fields: dict[str, object], words: str
) -> None:
    job = choose_kind(JobSpec(**{"job": "j", "kind": "auto", "outer": EXAMPLE, **fields}))
    with pytest.raises(UsageError) as refusal:
        choose_policy(job)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("sync", ["asp", "ssp:3", "ssp-restart:3"])
def test_weights_by_workers_go_with_rounds(sync: str) -> None:
    with pytest.raises(UsageError, match="--weights workers needs --sync bsp or psp or fsp"):
        choose_policy(JobSpec(job="j", sync=sync, weights="workers"))
    choose_policy(JobSpec(job="j", sync=sync, weights="points"))
