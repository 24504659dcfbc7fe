"""Types of message fields, and the identity fields that every message has.

The decoder refuses values outside the ranges of these types. So a machine can add, multiply and
square the numbers that it receives, and write them to the journal, without an overflow.
"""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

PROTOCOL = 6
EVERY_SLICE = -1
"""A value of `Message.slice`: the message concerns all slices that this server holds."""
MOST_IN_FLIGHT = 2
"""How many contributions of a worker may be in flight, that is, sent but not yet acknowledged."""

MOST_COUNT = 2**53
MOST_NUMBER = 1e100
Count: TypeAlias = Annotated[int, Meta(ge=-1, le=MOST_COUNT)]
"""An ordinal number, an epoch, a sequence number or a duration in nanoseconds; -1 means "none"."""
Amount: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_COUNT)]
Number: TypeAlias = Annotated[float, Meta(ge=-MOST_NUMBER, le=MOST_NUMBER)]
"""A finite number whose square is finite too. The bounds refuse NaN as well."""
Seconds: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e9)]
LEAST_WEIGHT = 1e-3
"""The least weight of a contribution, in points. Servers divide by the weight, and the quotient
must fit into half precision."""
Weight: TypeAlias = Annotated[float, Meta(ge=0.0, le=float(MOST_COUNT))]
Rate: TypeAlias = Annotated[float, Meta(ge=-1e4, le=1e4)]
"""A learning rate. An optimizer multiplies by it, and the product must fit into half precision."""
Label: TypeAlias = Annotated[str, Meta(max_length=1_000)]
MOST_METRIC_NAME = 64
METRIC_NAME = r"^[^\W\d][\w./-]*\Z"
MetricName: TypeAlias = Annotated[str, Meta(max_length=MOST_METRIC_NAME, pattern=METRIC_NAME)]
"""The name of a metric: letters, digits and `_ . / -`, beginning with a letter or `_`."""
MOST_METRICS = 100
"""The most metrics in one report."""
Option: TypeAlias = (
    bool | Count | Number | Label | Annotated[list[Number], Meta(max_length=16)] | None
)
"""An option of an optimizer."""


class Message(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """The identity fields that every message has."""

    term: Count = 0
    view: Count = 0
    routing: Count = 0
    worker: Count = -1
    incarnation: Count = 0
    sequence: Count = 0
    round: Count = 0
    slice: Count = EVERY_SLICE
    server: Count = -1
