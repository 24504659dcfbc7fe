"""Values that users and peers write: durations, sizes, names and reasons. Also the times at which
checkpoints are due.
"""

import re
from typing import TypeVar

import msgspec

from polyrhythm.errors import UsageError
from polyrhythm.wire.messages.reasons import Reason

_UNITS_NS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([a-z]+)", re.ASCII)
_MOST_NS = 365 * 24 * _UNITS_NS["h"]


def parse_duration(text: str) -> int:
    """The duration in nanoseconds. Raises a ValueError whose text says how to write a duration."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or match[2] not in _UNITS_NS:
        units = ", ".join(_UNITS_NS)
        raise ValueError(f"a duration is a number and its unit ({units}), such as 10ms")
    length_ns = float(match[1]) * _UNITS_NS[match[2]]
    if not 1 <= length_ns <= _MOST_NS:
        raise ValueError("a duration is at least 1ns and at most a year")
    return round(length_ns)


_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_MOST = 2**60
"""The largest size that is accepted. A larger one is a mistake, and does not fit into the 64 bits
of a number in a message."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)", re.ASCII)
_UNIT = re.compile(r"([kmgt]?)b|([kmgt])|([kmgt])ib?", re.ASCII | re.IGNORECASE)
_HOW = (
    "give a number and its unit, such as 500MB or 2GiB; the units are B, KB, MB, GB, TB (powers of"
    " 1000, also K, M, G, T) and KiB, MiB, GiB, TiB (powers of 1024, also Ki, Mi, Gi, Ti)"
)


def bytes_of_unit(unit: str) -> int | None:
    """The number of bytes of a unit, or None if the text is no unit. Lower and upper case mean the
    same. But a unit with a capital letter and a small b, such as `Mb`, is refused, because it may
    mean bits."""
    match = _UNIT.fullmatch(unit)
    if match is None or (unit[-1] == "b" and not unit.islower()):
        return None
    decimal, short, binary = match.groups()
    if binary is not None:
        return int(1024 ** _POWERS[binary.lower()])
    return int(1000 ** _POWERS[(decimal or short or "").lower()])


def parse_size(text: str) -> int:
    """The size in bytes. Raises a ValueError whose text says how to write a size."""
    if text.strip() == "0":
        return 0
    match = _SIZE.fullmatch(text.strip())
    factor = None if match is None else bytes_of_unit(match[2])
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size: {_HOW}")
    found = float(match[1]) * factor
    if found > _MOST:
        raise ValueError(f"{text!r} is too large: give at most {_MOST // 2**40}TiB")
    return round(found)


MOST_NAME = 100
MOST_REASON = 1_000
_CUT = "..."


def name_fault(name: str) -> Reason | None:
    """Why this text is refused as a name; None if it is accepted. *A name must not be empty, have
    control characters, or be longer than 100 characters.* Names are checked before they are stored,
    sent on or written to the journal. The reason does not contain the text."""
    if not name.strip():
        return Reason("name-missing")
    if len(name) > MOST_NAME:
        return Reason("name-too-long", {"characters": len(name), "most": MOST_NAME})
    if not name.isprintable():
        return Reason("name-unprintable")
    return None


def plain(text: str) -> str:
    """The text with its control characters escaped, cut to the maximum length."""
    text = text[: MOST_REASON + 1]  # cut before escaping, which makes a text longer
    if not text.isprintable():
        text = "".join(c if c.isprintable() else _escaped(c) for c in text)
    if len(text) > MOST_REASON:
        text = text[: MOST_REASON - len(_CUT)] + _CUT
    return text


def plain_reason(reason: Reason) -> Reason:
    """The reason with its code and all of its texts escaped and cut by `plain`."""
    fields = {
        plain(key): plain(value) if isinstance(value, str) else value
        for key, value in reason.fields.items()
    }
    return Reason(plain(reason.code), fields)


def shown(text: str) -> str:
    """The text with its control characters escaped, except line breaks, so that a name or a reason
    cannot move the cursor of a terminal or set its colour."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def name_order(name: str) -> tuple[int, str]:
    """A sort key by which worker-2 comes before worker-10."""
    return len(name), name


_ROUNDS = "rounds"


class Schedule(msgspec.Struct):
    """Decides when the next cut is due. `--checkpoint-every` gives a time (`60s`) or rounds
    (`100rounds`)."""

    every_ns: int | None = None
    every_rounds: int | None = None
    _ns: int = 0
    _rounds: int = 0
    """The time and the round in which the last cut began, or round 1 opened."""

    @classmethod
    def parse(cls, every: str) -> "Schedule":
        number = every.removesuffix(_ROUNDS)
        if every.endswith(_ROUNDS):
            if not (number.isascii() and number.isdigit() and int(number) > 0):
                raise UsageError(f"--checkpoint-every {every!r}: give 60s, or 100rounds")
            return cls(every_rounds=int(number))
        if not every:
            return cls()
        try:
            return cls(every_ns=parse_duration(every))
        except ValueError:
            wrong = f"--checkpoint-every {every!r} is not understood"
            raise UsageError(f"{wrong}: give a time such as 60s, or 100rounds") from None

    def begin(self, rounds: int, now_ns: int) -> None:
        """Begin the wait for the next cut, when round 1 opens or a cut begins."""
        self._ns, self._rounds = now_ns, rounds

    def due(self, rounds: int, now_ns: int) -> bool:
        if self.every_ns is not None:
            return now_ns >= self._ns + self.every_ns
        return self.every_rounds is not None and rounds >= self._rounds + self.every_rounds

    @property
    def wake_ns(self) -> int | None:
        return None if self.every_ns is None else self._ns + self.every_ns


Value = TypeVar("Value")


def keep_last(values: list[Value], value: Value, most: int) -> None:
    """Add a value to a list, and keep the last `most` values. *State uses lists instead of deques,
    because a snapshot can contain only lists* (`core/lead/state.py`)."""
    values.append(value)
    if len(values) > most:
        del values[0]
