"""Receiving a kept state in the lead's process: a member cannot make the process keep more bytes
than were asked for."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.errors import LinkError
from polyrhythm.runtime.server.checkpoints import KeptStates
from polyrhythm.wire import messages as m

WHO = {"worker": 2, "incarnation": 5, "number": 3}


def states(most_nbytes: int = 10) -> KeptStates:
    found = KeptStates(m.JobSpec(job="j"), lambda peer: None)
    found.expect(fx.ExpectKept(3, 2, 5, most_nbytes))
    return found


def part(**fields: int) -> m.Kept:
    return m.Kept(**{**WHO, "nbytes": 10, "offset": 0, "part": 4, **fields})  # type: ignore[arg-type]


def test_the_parts_of_a_state_are_put_together() -> None:
    found = states()
    assert found.take(part(), memoryview(b"abcd"))
    assert found.take(part(offset=4, part=6), memoryview(b"efghij"))
    assert bytes(found.state(3)) == b"abcdefghij"
    assert not found.state(4)


@pytest.mark.parametrize("other", [{"worker": 1}, {"incarnation": 4}, {"number": 2}])
def test_a_state_that_was_not_asked_for_takes_no_memory(other: dict[str, int]) -> None:
    found = states()
    assert not found.take(part(**other), memoryview(b"abcd"))
    assert not found.state(3)
    assert not KeptStates(m.JobSpec(job="j"), lambda peer: None).take(part(), memoryview(b"abcd"))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"nbytes": 11}, "too large"),
        ({"offset": 4}, "out of order"),
        ({"part": 3}, "out of order"),
        ({"nbytes": 3}, "out of order"),
    ],
    ids=["too large", "gap", "other length", "beyond the end"],
)
def test_parts_that_contradict_the_announcement_end_the_link(
    fields: dict[str, int], why: str
) -> None:
    with pytest.raises(LinkError, match=why):
        states().take(part(**fields), memoryview(b"abcd"))


def test_a_part_that_comes_twice_ends_the_link() -> None:
    found = states()
    found.take(part(), memoryview(b"abcd"))
    with pytest.raises(LinkError):
        found.take(part(), memoryview(b"abcd"))


def test_the_state_of_an_earlier_cut_is_forgotten() -> None:
    found = states()
    found.take(part(), memoryview(b"abcd"))
    found.expect(fx.ExpectKept())
    assert not found.state(3)
