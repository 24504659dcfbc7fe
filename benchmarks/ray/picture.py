"""Draws RayPS's Figs. 5 and 6: seconds and accuracy over the number of workers, and of servers."""

from typing import Any
from xml.sax.saxutils import escape

_COLOURS = {"polyrhythm": "#4269d0", "Ray": "#9aa3ad"}
_TEXT = "#6e7781"
_WIDE, _HIGH, _LEFT, _TOP, _GAP = 240, 150, 50, 50, 90


def draw(found: dict[str, Any]) -> str:
    panels = [
        ("workers", "seconds", f"seconds for {found['steps']} batches"),
        ("workers", "accuracy", "accuracy afterwards"),
        ("servers", "seconds", "seconds, one worker"),
    ]
    width = len(panels) * (_WIDE + _GAP) + 120
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_TOP + _HIGH + 50}"'
        f' font-family="system-ui, sans-serif" font-size="12" fill="{_TEXT}">'
    ]
    for number, (over, what, title) in enumerate(panels):
        parts += _panel(found, over, what, title, _LEFT + number * (_WIDE + _GAP))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(found: dict[str, Any], over: str, what: str, title: str, left: float) -> list[str]:
    lines = {
        name.partition(", ")[2]: {int(count): each[what] for count, each in values.items()}
        for name, values in found.items()
        if name.startswith(f"{over}, ")
    }
    counts = sorted({count for values in lines.values() for count in values})
    most = 1.0 if what == "accuracy" else max(max(each.values()) for each in lines.values())
    bottom = _TOP + _HIGH

    def at(count: int, value: float) -> tuple[float, float]:
        place = counts.index(count) / max(1, len(counts) - 1)
        return left + _WIDE * place, bottom - _HIGH * value / most

    parts = [
        f'<text x="{left}" y="{_TOP - 20}" font-weight="600">{escape(title)}</text>',
        f'<path d="M{left} {_TOP}V{bottom}H{left + _WIDE}" fill="none" stroke="{_TEXT}"/>',
        f'<text x="{left - 6}" y="{_TOP + 4}" text-anchor="end">{most:.3g}</text>',
        f'<text x="{left - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{left + _WIDE / 2}" y="{bottom + 36}" text-anchor="middle">{over}</text>',
    ]
    for count in counts:
        x, _ = at(count, 0)
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{count}</text>')
    for name, values in lines.items():
        points = [at(count, values[count]) for count in sorted(values)]
        colour = _COLOURS[name.partition(",")[0]]
        dash = ' stroke-dasharray="5 4"' if name.endswith("async") else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        x, y = points[-1]
        parts.append(f'<text x="{x + 6:.1f}" y="{y + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    return parts
