"""Pictures with axes: curves of the objective over time, and seconds to the target over the interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_COLOURS = ("#4269d0", "#ff725c", "#efb118", "#3ca951", "#a463f2", "#9aa3ad")
_TEXT = "#6e7781"
_LEFT, _TOP, _WIDE, _HIGH = 60, 30, 480, 260
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axes:
    """The ranges of both axes. `log`: the horizontal axis is logarithmic."""

    left: float
    right: float
    low: float
    high: float
    log: bool = False

    @classmethod
    def around(cls, curves: Sequence[Points], *, log: bool = False) -> "Axes":
        xs = [x for curve in curves for x, _ in curve] or [1.0]
        ys = [y for curve in curves for _, y in curve] or [1.0]
        low, high = min(ys), max(ys)
        left = min(xs) if log else 0.0
        return cls(left, max(xs) if max(xs) > left else left + 1.0, low, high or 1.0, log)

    def at(self, x: float, y: float) -> tuple[float, float]:
        x = min(self.right, max(self.left, x))
        if self.log:
            across = math.log(x / self.left) / math.log(self.right / self.left)
        else:
            across = (x - self.left) / (self.right - self.left)
        up = (min(self.high, max(self.low, y)) - self.low) / ((self.high - self.low) or 1.0)
        return _LEFT + _WIDE * across, _TOP + _HIGH * (1 - up)


def draw(
    title: str,
    curves: Mapping[str, Points],
    axes: Axes,
    units: tuple[str, str],
    marks: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
) -> str:
    """Curves with their names. `units`: what the two axes show. `marks`: per curve, single points with
    a letter each."""
    bottom = _TOP + _HIGH
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDE + 130} {bottom + 50}"'
        f' font-family="system-ui, sans-serif" font-size="13" fill="{_TEXT}">',
        f'<text x="{_LEFT}" y="18" font-weight="600">{escape(title)}</text>',
        f'<path d="M{_LEFT},{_TOP} V{bottom} H{_LEFT + _WIDE}" fill="none" stroke="{_TEXT}"/>',
        _text(_LEFT - 8, _TOP + 5, f"{axes.high:.4g}", "end"),
        _text(_LEFT - 8, bottom, f"{axes.low:.4g}", "end"),
        _text(_LEFT, bottom + 18, f"{axes.left:.3g}"),
        _text(_LEFT + _WIDE, bottom + 18, f"{axes.right:.3g}", "end"),
        _text(_LEFT + _WIDE / 2, bottom + 18, units[0], "middle"),
        _text(_LEFT + _WIDE / 2, bottom + 36, units[1], "middle"),
    ]
    for number, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (axes.at(*point) for point in curve))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for letter, place in (marks or {}).get(name, {}).items():
            x, y = axes.at(*place)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8" fill="{colour}"/>')
            parts.append(
                f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle" fill="#fff"'
                f' font-size="11">{escape(letter)}</text>'
            )
        y = _TOP + 16 + 18 * number
        parts.append(
            f'<text x="{_LEFT + _WIDE + 12}" y="{y}" fill="{colour}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'
