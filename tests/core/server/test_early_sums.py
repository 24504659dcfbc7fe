"""`--optimizer-on workers`: a server sends the sum of a slice when every member has contributed."""

from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.core.server.slices import RoundsSlices, Verdict
from polyrhythm.wire.messages import Contribution, Copy, MemberSpec, Route, Row, SliceStep, Stamp

SLICES = 2
WORKERS = 3


def members(incarnations: dict[int, int]) -> tuple[MemberSpec, ...]:
    return tuple(MemberSpec(worker, of, f"w{worker}") for worker, of in incarnations.items())


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, WORKERS - 1), st.integers(0, SLICES - 1)),
            st.tuples(st.just("fold"), st.sets(st.integers(0, WORKERS - 1), min_size=1)),
        ),
        max_size=40,
    )
)
def test_a_sum_is_complete_when_every_member_of_the_view_is_in_it(events: list[tuple]) -> None:
    """Members come and go with folds. A worker contributes once to a round, and sends every slice of
    its contribution once."""
    rules = RoundsSlices(0, [Route(0, since=1)] * SLICES, 1)
    view = dict.fromkeys(range(WORKERS), 1)
    rules.enlist(members(view))
    sequences = dict.fromkeys(view, 1)
    added: list[set[int]] = [set() for _ in range(SLICES)]
    round_ = 0
    for event in events:
        if event[0] == "fold":
            round_ += 1
            rules.fold(round_)
            came = {worker: 10 + round_ for worker in event[1] if worker not in view}
            view = {worker: of for worker, of in (view | came).items() if worker in event[1]}
            rules.enlist(members(view))
            sequences = {w: 1 if w in came else 1 + sequences.get(w, 0) for w in view}
            added = [set() for _ in range(SLICES)]
        elif event[1] in view:
            _, worker, slice_ = event
            whose = {"worker": worker, "incarnation": view[worker], "sequence": sequences[worker]}
            message = Contribution(
                **whose, slice=slice_, slices=SLICES, weight=1.0, round=round_ + 1
            )
            if rules.judge(message) is Verdict.NEW:
                rules.add(message)
                added[slice_].add(worker)
        for slice_ in range(SLICES):
            assert rules.is_summed(slice_) == (added[slice_] >= view.keys())


def test_a_sum_belongs_to_the_open_round_of_its_slice() -> None:
    """A server dies during the fold of round 1. Its successor has a copy of the version that the fold
    makes for slice 1, and none for slice 0."""
    rules = RoundsSlices(1, [Route(0, (1,), since=1)] * SLICES, 1)
    rules.enlist(members({0: 1}))
    copy = Copy(
        routing=1,
        server=0,
        slice=1,
        stamp=Stamp(1, 1, 1),
        step=SliceStep(1.0),
        rows=(Row(0, 1, 1),),
    )
    rules.on_copied(copy, rules.judge_step(copy))
    rules.reroute([Route(1, since=2)] * SLICES, 2)
    whose = {"worker": 0, "incarnation": 1, "sequence": 1}
    again = Contribution(**whose, slice=0, slices=SLICES, weight=1.0, round=1)
    assert rules.judge(again) is Verdict.NEW
    rules.add(again)
    assert [rules.is_summed(slice_) for slice_ in range(SLICES)] == [True, False]
    assert [rules.sum_of(slice_) for slice_ in range(SLICES)] == [1, 2]
