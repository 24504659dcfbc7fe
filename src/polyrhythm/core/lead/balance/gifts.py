"""Chooses which chunks of slow members go to which fast members (`chunks.py` has the order)."""

from collections.abc import Collection, Iterable, Mapping

from polyrhythm.core.lead.balance.chunks import HeldChunk, choose
from polyrhythm.core.lead.chunks import Gift, Holder
from polyrhythm.core.lead.data import DataPlan


def gifts(
    plan: DataPlan,
    sources: Iterable[Holder],
    targets: Iterable[Holder],
    amount: float,
    *,
    ends: bool,
    this_pass: bool = False,
    copies: Mapping[Holder, Collection[int]] | None = None,
) -> list[Gift]:
    """Choose chunks with about `amount` points of each of `sources`, and divide them evenly among
    `targets`. `ends`: `amount` is a number of remaining visits: in the job, or with `this_pass` in
    the present pass. `copies`: per member, the chunks of which it has an inactive copy. Chunks whose
    points need not be sent move first, to a target that has the points."""
    there = {target: (copies or {}).get(target, ()) for target in targets}
    received = dict.fromkeys(sorted(there), 0)
    last = plan.passes + 1 if this_pass else plan.epochs
    found = []
    for source in sorted(sources) if received else ():
        held, ways = [], {}
        for index in plan.held_by(source):
            chunk = plan.chunks[index]
            near = {t: index in there[t] or plan.reads(t, index) for t in received}
            may = {t for t in received if plan.may_move(index, source, t, sent=not near[t])}
            if may:
                numbers = (index, chunk.points, chunk.passes, chunk.cursor, chunk.visited)
                held.append(HeldChunk(*numbers, any(near[t] for t in may)))
                ways[index] = {t: not near[t] for t in may}
        for index in choose(held, amount, last, ends=ends):
            far = ways[index]
            target = min(sorted(far), key=lambda each: (far[each], received[each]))
            received[target] += plan.chunks[index].points
            found.append((index, source, target))
    return found
