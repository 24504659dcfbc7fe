"""Slices cover every space exactly, do not cross parameter groups, stay below the size limit, and
are enough for every server."""

import math

from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.core.placement.slices import ALIGN, BUFFERS, ITEM_NBYTES, Layout, lay_out, pack
from polyrhythm.wire.messages import ModelSpec, OptimizerSpec, TensorSpec

shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)
tensors = st.lists(
    st.tuples(shapes, st.sampled_from(sorted(ITEM_NBYTES)), st.integers(BUFFERS, 2)),
    min_size=1,
    max_size=10,
)
servers = st.integers(1, 9)
limits = st.sampled_from([64, 128, 1000, 4096, 2 * 1024 * 1024])


def spec_of(parts: list[tuple[tuple[int, ...], str, int]]) -> ModelSpec:
    return ModelSpec(
        tuple(
            TensorSpec(f"t{index}", shape, dtype, group, ())
            for index, (shape, dtype, group) in enumerate(parts)
        ),
        OptimizerSpec("SGD", ({"lr": 0.1},) * 3),
    )


def groups_by_element(layout: Layout) -> dict[tuple[int, int], int]:
    return {
        (place.space, place.offset + element): place.tensor.group
        for place in layout.places
        for element in range(place.length)
    }


@given(tensors, servers, limits)
def test_slices_cover_every_space_exactly(parts, count, limit) -> None:
    layout = lay_out(spec_of(parts), count, limit)
    assert [slice_.id for slice_ in layout.slices] == list(range(len(layout.slices)))
    for space, whole in enumerate(layout.spaces):
        end = 0
        for slice_ in layout.slices:
            if slice_.space == space:
                assert slice_.offset == end
                assert slice_.length > 0
                end += slice_.length
        assert end == whole.length


@given(tensors, servers, limits)
def test_slices_keep_to_groups_limit_and_alignment(parts, count, limit) -> None:
    layout = lay_out(spec_of(parts), count, limit)
    for slice_ in layout.slices:
        item = ITEM_NBYTES[layout.spaces[slice_.space].dtype]
        assert slice_.offset * item % ALIGN == 0
        assert slice_.length * item <= max(limit, ALIGN)
    element_group = groups_by_element(layout)
    for slice_ in layout.slices:
        inside = {
            element_group.get((slice_.space, slice_.offset + element), slice_.group)
            for element in range(slice_.length)
        }
        assert inside == {slice_.group}


@given(tensors, servers, limits)
def test_there_are_at_least_as_many_as_servers(parts, count, limit) -> None:
    layout = lay_out(spec_of(parts), count, limit)
    lines = layout.nbytes // ALIGN
    assert len(layout.slices) >= min(count, lines)


@given(tensors, servers, limits)
def test_tensors_lie_aligned_and_apart_in_a_space_of_their_dtype(parts, count, limit) -> None:
    layout = lay_out(spec_of(parts), count, limit)
    assert sorted(place.index for place in layout.places) == list(range(len(parts)))
    taken: dict[int, int] = {}
    for place in sorted(layout.places, key=lambda place: (place.space, place.offset)):
        space = layout.spaces[place.space]
        assert space.dtype == place.tensor.dtype
        assert space.buffers == (place.tensor.group == BUFFERS)
        assert place.length == math.prod(place.tensor.shape)
        assert place.offset * ITEM_NBYTES[space.dtype] % ALIGN == 0
        assert place.offset >= taken.get(place.space, 0)
        taken[place.space] = place.offset + place.length
        assert taken[place.space] <= space.length


@given(tensors, servers, limits)
def test_packed_slices_lie_side_by_side(parts, count, limit) -> None:
    layout = lay_out(spec_of(parts), count, limit)
    items = [ITEM_NBYTES[layout.spaces[slice_.space].dtype] for slice_ in layout.slices]
    places, nbytes = pack(layout.slices, items)
    end = 0
    for (offset, size), slice_, item in zip(places, layout.slices, items, strict=True):
        assert offset >= end and offset % ALIGN == 0
        assert size == slice_.length * item
        end = offset + size
    assert nbytes >= end


@given(tensors, servers, limits)
def test_the_parts_of_all_slices_are_the_tensors(parts, count, limit) -> None:
    """Every element of every tensor is in one part, and no part holds two tensors or padding."""
    layout = lay_out(spec_of(parts), count, limit)
    owners = {
        (place.space, place.offset + element): place.index
        for place in layout.places
        for element in range(place.length)
    }
    found: list[tuple[int, int]] = []
    for slice_ in layout.slices:
        for first, end in slice_.parts:
            elements = [(slice_.space, slice_.offset + at) for at in range(first, end)]
            assert len({owners[element] for element in elements}) == 1
            found += elements
    assert sorted(found) == sorted(owners)
