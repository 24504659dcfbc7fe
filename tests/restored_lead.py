"""A plugin of pytest: every lead restores itself from its snapshot after every event.

    python -m pytest -p tests.restored_lead tests/core/lead

A test that passes with this plugin shows that a snapshot has everything on which the test depends.
"""

from collections.abc import Sequence
from typing import Any

from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.machine import Effect

_handle = LeadMachine.handle


def handle_and_restore(lead: LeadMachine, event: Any, now_ns: int) -> Sequence[Effect]:
    effects = _handle(lead, event, now_ns)
    seat = lead.parts.outbox.seat
    lead.__dict__ = LeadMachine.restore(lead.job, lead.snapshot(), seat).__dict__
    return effects


def pytest_configure() -> None:
    LeadMachine.handle = handle_and_restore  # type: ignore[method-assign]
