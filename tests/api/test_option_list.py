"""The signature of `train` is the list of options: flags, settings of the job and checks follow from
it."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from polyrhythm.api.options import (
    Group,
    Option,
    check_values,
    fields_of,
    flag_of,
    has_goal,
    options_of,
)
from polyrhythm.api.serving import serve
from polyrhythm.api.training import train
from polyrhythm.api.values import at_least
from polyrhythm.cli.keywords import flags_from
from polyrhythm.cli.resume import resume
from polyrhythm.core.combinations import OF_COMMANDS, OF_MACHINES, SHARING, WITHOUT_EFFECT
from polyrhythm.core.metrics import Target
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec

LISTED = options_of(train)
FIELDS = {field.name: field for field in msgspec.structs.fields(JobSpec)}


def keywords(function: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}


def test_every_keyword_of_train_is_an_option_of_the_list() -> None:
    assert keywords(train) == LISTED.keys()


def test_an_option_sets_a_field_of_the_job_that_exists() -> None:
    set_by_none = {name for name, each in LISTED.items() if each.field is None}
    assert {each.field.partition(".")[0] for each in LISTED.values() if each.field} <= FIELDS.keys()
    assert not {name for name in set_by_none if name in FIELDS} - {"name", "store"}


def test_every_row_about_combinations_names_an_option_of_the_list() -> None:
    named = {rule.option for rule in (*OF_MACHINES, *OF_COMMANDS, *SHARING, *WITHOUT_EFFECT)}
    assert named <= {each.field for each in LISTED.values()}


def test_one_annotated_keyword_is_a_flag_with_a_check_that_sets_a_field() -> None:
    def job(
        *,
        patience: Annotated[
            int,
            Option("How long.", group=Group.TUNING, field="rounds", check=at_least(2), goal=True),
        ] = 7,
    ) -> None: ...

    @flags_from(job)
    def command(**options: Any) -> None: ...

    assert keywords(command) == {"patience"}
    assert fields_of(job, {"patience": 3}) == {"rounds": 3}
    with pytest.raises(UsageError, match="^--patience is 1: it must be at least 2$"):
        check_values(job, {"patience": 1})
    assert has_goal(job, JobSpec(job="j", rounds=3)) and not has_goal(job, JobSpec(job="j"))


def test_the_text_of_a_later_option_says_since_when_it_exists() -> None:
    assert Option("How long.", group=Group.TUNING).help == "How long."
    assert (
        Option("How long.", group=Group.TUNING, since="0.2").help == "How long. Since version 0.2."
    )


def test_options_without_a_value_set_no_field() -> None:
    given = dict.fromkeys(LISTED)
    assert fields_of(train, given) == {}
    assert fields_of(train, {**given, "slow": []}) == {}


def test_options_of_one_field_are_joined(tmp_path: Path) -> None:
    given = {
        "target": {"val_loss": 0.5},
        "target_accuracy": 0.9,
        "min_step": "10ms",
        "slow": ["1=2x", "2=3x"],
        "migrate_memory": "1KiB",
    }
    assert fields_of(train, given) == {
        "targets": (Target("val_loss", 0.5, False), Target("accuracy", 0.9, True)),
        "slowdowns": {"min-step": "10ms", "slow": "1=2x,2=3x"},
        "migrate_memory": 1024,
    }


def test_serve_has_no_options_of_workers_that_train_starts() -> None:
    assert keywords(train) - keywords(serve) == {
        *("engine", "address", "resources_per_worker", "resources_per_server", "local_workers"),
        *("detach", "threads", "devices", "share_data", "data_dir"),
        *("min_step", "slow", "slow_at", "stall", "tenant"),
    }


def test_resume_has_the_options_that_a_job_may_change_and_those_of_the_command() -> None:
    """A value that is not given is None, and the job keeps its setting."""
    parameters = inspect.signature(resume).parameters
    of_train = parameters.keys() & LISTED.keys()
    settings = {name for name in of_train if LISTED[name].field}
    assert settings == {
        *("workers", "servers", "replicas", "placement", "sync", "rounds", "epochs", "points"),
        *("target", "target_accuracy", "target_objective", "max_seconds", "checkpoint_every"),
        *("keep", "link", "optimizer_on"),
    }
    assert all(parameters[name].default is None for name in settings)
    others = of_train - settings
    assert {"digest", "host", "devices", "local_servers", "store", "name"} <= others
    defaults = inspect.signature(train).parameters
    assert all(parameters[name].default == defaults[name].default for name in others)


def test_the_help_of_an_option_begins_with_a_short_sentence() -> None:
    for name, option in LISTED.items():
        assert option.help and option.help.endswith("."), flag_of(name)
        if option.common:
            assert len(option.help.partition(". ")[0]) <= 104, flag_of(name)
