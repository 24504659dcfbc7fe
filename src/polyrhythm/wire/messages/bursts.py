"""A process's measurements of the links over which it receives. It reports them to the lead
together with other messages."""

from typing import Annotated

import msgspec
from msgspec import Meta

from polyrhythm.wire.messages.fields import Amount, Message

MOST_BURSTS = 64
"""The most bursts in one report. If there are more, a process joins neighbours."""


class Burst(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A time in which bytes arrived from one process without a break: `nbytes` from `began_ns` to
    `ended_ns`, by the monotonic clock of the host that received them. `source`: the name of the
    process that sent them, such as w3 or s1."""

    source: Annotated[str, Meta(max_length=24)]
    began_ns: Amount
    ended_ns: Amount
    nbytes: Amount


class Received(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The bursts that a process received since its last report. `at_ns`: the time of the report, by
    the same clock, so that the lead can place the bursts of different hosts on one time axis."""

    at_ns: Amount
    bursts: Annotated[tuple[Burst, ...], Meta(max_length=MOST_BURSTS)]


class RatesMeasured(Message, frozen=True, kw_only=True):
    """A worker or a server tells the lead what it has received. The message is queued just before
    another one to the lead, so that both travel together."""

    received: Received
