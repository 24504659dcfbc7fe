"""What `--migrate auto` means: it depends on which points the workers can read."""

import pytest

from polyrhythm.core.migration import choose_migration
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.wire.messages import JobSpec


@pytest.mark.parametrize(
    ("changes", "mode", "code"),
    [
        ({}, "lease", "migrate-lease"),
        ({"data_private": True}, "full", "migrate-private"),
        ({"sync": "bsp"}, "off", "migrate-off-policy"),
        ({"kind": "statistics"}, "full", "migrate-kind"),
        ({"migrate": "lease"}, "lease", "migrate-given"),
        ({"migrate": "off"}, "off", "migrate-given"),
    ],
)
def test_auto_is_lease_where_every_worker_can_read_the_whole_data_set_and_otherwise_full(
    changes: dict[str, object], mode: str, code: str
) -> None:
    fields: dict[str, object] = {"sync": "fsp", "kind": "local", "migrate": "auto"}
    job = JobSpec(job="j", **{**fields, **changes})  # type: ignore[arg-type]
    choice = choose_migration(job, traits_of(job.sync))
    assert (choice.mode, choice.reason.code) == (mode, code)
