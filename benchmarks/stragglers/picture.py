"""Draws the table as bars: the seconds to the target, and beside them the batches computed per
second."""

from typing import Any
from xml.sax.saxutils import escape

_ROW, _BAR, _TOP, _LABELS, _WIDE = 30, 18, 56, 190, 280
_OURS, _THEIRS = "#4269d0", "#9aa3ad"
_TEXT = "#6e7781"


def draw(result: dict[str, Any], limit_s: float, most_per_s: float) -> str:
    medians = result["medians"]
    right = _LABELS + _WIDE + 70
    height = _TOP + _ROW * len(medians) + 16
    seconds = {name: median["seconds_to_target"] for name, median in medians.items()}
    rates = {name: median["batches_per_s"] for name, median in medians.items()}
    longest = max((value for value in seconds.values() if value is not None), default=limit_s)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + _WIDE + 70} {height}"'
        f' font-family="system-ui, sans-serif" font-size="13" fill="{_TEXT}">',
        _title(_LABELS, f"seconds to {result['target']:.0%} (less is better)"),
        _title(right, f"batches computed per second, of {most_per_s:g} possible"),
    ]
    for row, name in enumerate(medians):
        y = _TOP + _ROW * row
        parts.append(
            f'<text x="{_LABELS - 10}" y="{y + _BAR - 4}" text-anchor="end">{escape(name)}</text>'
        )
        parts.append(
            _bar(name, _LABELS, y, seconds[name], longest, f"over {limit_s:.0f}", "{:.1f}")
        )
        parts.append(_bar(name, right, y, rates[name], most_per_s, "-", "{:.0f}"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _title(x: float, text: str) -> str:
    return f'<text x="{x}" y="30" font-weight="600">{escape(text)}</text>'


def _bar(
    name: str, x: float, y: float, value: float | None, whole: float, missing: str, form: str
) -> str:
    width = _WIDE if value is None else _WIDE * min(1.0, value / whole)
    colour = _OURS if name.startswith("polyrhythm") else _THEIRS
    faint = ' opacity="0.25"' if value is None else ""
    text = missing if value is None else form.format(value)
    return (
        f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2" fill="{colour}"{faint}/>'
        f'<text x="{x + width + 6:.1f}" y="{y + _BAR - 4}">{text}</text>'
    )
