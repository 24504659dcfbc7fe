"""Reasons as sentences: fills the templates of `templates.py` with the fields of a reason."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polyrhythm.core.names import server_name, worker_name
from polyrhythm.observe.templates import DIFFERENCES, GOALS, NOTICED, SENTENCES
from polyrhythm.observe.words import counted, listed, measure
from polyrhythm.wire.messages.reasons import Reason

NameOf = Callable[[int], str]
_MOST_NAMES = 8
"""The most names in a list. A longer list shows the first names, and the number of the others."""

LINK_ENDED = "link-ended"
CUT_OFF = "cut-off"
"""The code of the reason for excluding a worker: its link to a server does not work."""
_WORKERS = ("workers", "held", "missing", "targets")
_SERVERS = ("servers",)


def in_words(reason: Reason, name_of: NameOf = worker_name) -> str:
    """The sentence of a reason. `name_of` returns the name of a worker. An unknown code is shown
    with its fields."""
    return _filled(SENTENCES, reason.code, reason.fields, name_of)


def noticed_by(reason: Reason) -> str:
    """How the loss of a server was noticed."""
    return _filled(NOTICED, reason.code, reason.fields, worker_name)


def parting(reason: Reason, name_of: NameOf = worker_name) -> str:
    """Why a worker left. If its link ended, the sentence does not give the details."""
    return "its link ended" if reason.code == LINK_ENDED else in_words(reason, name_of)


def limit_in_words(fields: Mapping[str, Any]) -> str:
    """How long a silence may last, and how this limit was derived: `2.00 s = ...`."""
    return f"{fields['limit_s']:.2f} s = {limit_derivation(fields)}"


def limit_derivation(fields: Mapping[str, Any]) -> str:
    """How the limit for a silence was derived from the intervals between heartbeats."""
    if "heartbeats" in fields:
        return f"{fields['heartbeats']} x the heartbeat interval of {fields['heartbeat_s']:.2f} s"
    mean_s, deviation_s = fields["mean_s"], fields["deviation_s"]
    longer = f"2 x {mean_s:.2f} s" if 2 * mean_s >= 4 * deviation_s else f"4 x {deviation_s:.2f} s"
    return (
        f"mean gap {mean_s:.2f} s (of the last {fields['gaps']}) + {longer} (the larger of 2 gaps"
        f" and 4 standard deviations) + {fields['network_s']:.1f} s"
    )


def _filled(
    templates: Mapping[str, str], code: str, fields: Mapping[str, Any], name_of: NameOf
) -> str:
    try:
        return templates[code].format_map(_Shown(fields, name_of))
    except (KeyError, ValueError, TypeError):
        return " ".join([code, *(f"{key}={value}" for key, value in sorted(fields.items()))])


class _Shown(dict[str, Any]):
    """The fields of a reason as a template shows them."""

    def __init__(self, fields: Mapping[str, Any], name_of: NameOf) -> None:
        super().__init__(fields)
        for key, value in fields.items():
            if key in _WORKERS and isinstance(value, list):
                self[key] = _Names([name_of(worker) for worker in value])
            elif key in _SERVERS and isinstance(value, list):
                self[key] = _Names([server_name(server) for server in value])
            elif type(value) is int:
                self[key] = _Count(value)
        self._fields = fields
        self._name_of = name_of

    def __missing__(self, key: str) -> str:
        if key == "limit":
            return limit_in_words(self._fields)
        if key == "of_operator":
            by = self._fields.get("by")
            return f" of {by}" if by else ""
        if key == "bound":
            return "at least" if self._fields["at_least"] else "at most"
        if key == "fall":
            return _fall(self._fields["gain"])
        if key == "falls":
            return _falls(self._fields["gain"], self._fields["promised"])
        if key == "measured":
            return measure(self._fields["value"])
        if key == "plan":
            return _plan(self._fields["workers"], self._fields["steps"], self._name_of)
        raise KeyError(key)

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if key == "cause":
            own = {name: field for name, field in self._fields.items() if name != "cause"}
            return _filled(SENTENCES, str(value), own, self._name_of)
        if key == "differs":
            return DIFFERENCES[str(value)]
        if key == "goal":
            return _filled(GOALS, str(value), self._fields, self._name_of)
        return value


def _fall(gain: float) -> str:
    """How the objective is expected to change. A negative gain is a rise."""
    if gain < 0:
        return f"rise by {-gain:.3g} per second, and faster with other intervals"
    return f"fall by {gain:.3g} per second"


def _falls(gain: float, promised: float) -> str:
    """How the objective changes, and how it was expected to change."""
    wanted = f"{abs(promised):.3g}"
    if gain >= 0:
        return f"falls by {gain:.3g} per second instead of {wanted}"
    other = "" if promised < 0 else "falling by "
    return f"rises by {-gain:.3g} per second instead of {other}{wanted}"


class _Count(int):
    def __format__(self, spec: str) -> str:
        if "|" in spec:
            one, many = spec.split("|")
            return f"{int(self)} {one if self == 1 else many}"
        return (
            counted(int(self), spec)
            if len(spec) > 1 and spec[0].isalpha()
            else format(int(self), spec)
        )


class _Names:
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def __format__(self, spec: str) -> str:
        if "|" in spec:
            one, many = spec.split("|")
            return one if len(self._names) == 1 else many
        return few(self._names)


def few(names: Sequence[str]) -> str:
    """The names as a list. If there are many, the first ones and the number of the others."""
    if len(names) <= _MOST_NAMES:
        return listed(names)
    return f"{', '.join(names[:_MOST_NAMES])} and {len(names) - _MOST_NAMES} more"


def _plan(workers: Sequence[int], steps: Sequence[int], name_of: NameOf) -> str:
    """The number of steps of each worker: `3 of worker-0 and worker-2; 1 of worker-1`."""
    groups: dict[int, list[str]] = {}
    for worker, count in zip(workers, steps, strict=True):
        groups.setdefault(count, []).append(name_of(worker))
    return "; ".join(f"{count} of {few(groups[count])}" for count in sorted(groups, reverse=True))
