"""Pictures of the studies: curves of the objective over time, and bars of the seconds to the
target."""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_COLOURS = ("#4269d0", "#ff725c", "#efb118", "#3ca951", "#a463f2", "#9aa3ad")
_TEXT = "#6e7781"
_LEFT, _TOP, _WIDE, _HIGH = 60, 20, 480, 260
_ROW, _BAR = 18, 13


def draw_curves(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    unit: str = "s",
    title: str = "objective over time",
) -> str:
    """Curves of each policy's objective over seconds of training, or of something else over another
    unit."""
    points = [point for curve in curves.values() for point in curve]
    longest = max((at_s for at_s, _ in points), default=1.0) or 1.0
    highest = max((value for _, value in points), default=1.0) or 1.0
    parts = [_open(_LEFT + _WIDE + 150, _TOP + _HIGH + 50), _axes(longest, highest, unit, title)]
    for number, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(
            f"{_LEFT + _WIDE * at_s / longest:.1f},{_TOP + _HIGH * (1 - value / highest):.1f}"
            for at_s, value in curve
        )
        y = _TOP + 16 + 18 * number
        parts += [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<text x="{_LEFT + _WIDE + 12}" y="{y}" fill="{colour}">{escape(name)}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_bars(
    seconds: Mapping[str, Mapping[str, float | None]], limit_s: float, unit: str = "s"
) -> str:
    """Bars of each policy's seconds to the target, in one group per setting; or of another figure."""
    longest = max(
        (value for group in seconds.values() for value in group.values() if value is not None),
        default=limit_s,
    )
    rows = sum(len(group) + 1 for group in seconds.values())
    parts = [_open(190 + _WIDE + 90, 40 + rows * _ROW)]
    y = 20
    for setting, group in seconds.items():
        parts.append(f'<text x="10" y="{y + 11}" font-weight="600">{escape(setting)}</text>')
        y += _ROW
        for number, (name, value) in enumerate(group.items()):
            width = _WIDE * (1.0 if value is None else value / longest)
            faint = ' opacity="0.25"' if value is None else ""
            text = f"over {limit_s:.0f} {unit}" if value is None else f"{value:.3g} {unit}"
            colour = _COLOURS[number % len(_COLOURS)]
            parts += [
                f'<text x="180" y="{y + 11}" text-anchor="end">{escape(name)}</text>',
                f'<rect x="190" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}"{faint}/>',
                f'<text x="{196 + width:.1f}" y="{y + 11}">{text}</text>',
            ]
            y += _ROW
    return "\n".join([*parts, "</svg>"]) + "\n"


def _open(wide: int, high: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}"'
        f' font-family="system-ui, sans-serif" font-size="13" fill="{_TEXT}">'
    )


def _axes(longest: float, highest: float, unit: str, title: str) -> str:
    bottom = _TOP + _HIGH
    return (
        f'<path d="M{_LEFT},{_TOP} V{bottom} H{_LEFT + _WIDE}" fill="none" stroke="{_TEXT}"/>'
        f'<text x="{_LEFT - 8}" y="{_TOP + 5}" text-anchor="end">{highest:.2g}</text>'
        f'<text x="{_LEFT - 8}" y="{bottom}" text-anchor="end">0</text>'
        f'<text x="{_LEFT + _WIDE}" y="{bottom + 18}" text-anchor="end">{longest:.0f} {unit}</text>'
        f'<text x="{_LEFT}" y="{bottom + 18}">{escape(title)}</text>'
    )
