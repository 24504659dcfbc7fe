"""Text in columns for a terminal. *Widths are counted in cells: a character of Chinese, Japanese or
Korean, and most emoji, fill two.*"""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

_GAP = 2
_MORE = "…"


def cut(text: str, cells: int) -> str:
    """The text in at most this many cells. If it is longer, its end is replaced by an ellipsis."""
    if cell_len(text) <= cells:
        return text
    return set_cell_size(text, max(0, cells - 1)).rstrip() + _MORE


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """The width of each column."""
    return [max(map(cell_len, column)) for column in zip(*rows, strict=True)]


def width(rows: Sequence[Sequence[str]]) -> int:
    """The width of all columns, with the space between them. A last column that is empty needs none."""
    each = widths(rows)
    while each and not each[-1]:
        each.pop()
    return sum(each) + _GAP * max(0, len(each) - 1)


def aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Each row as a line. `right`: which columns are aligned at their right end, as numbers are."""
    each = widths(rows)
    lines = []
    for row in rows:
        cells = [
            f"{'':{space - cell_len(cell)}}{cell}"
            if ends
            else f"{cell}{'':{space - cell_len(cell)}}"
            for cell, space, ends in zip(row, each, right, strict=True)
        ]
        lines.append(f"{'':{_GAP}}".join(cells).rstrip())
    return lines
