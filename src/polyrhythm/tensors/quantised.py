"""Slices of contributions as integers of 8 bits (`--push int8`).

A quantised slice consists of the scales of its blocks (`core/kinds.py`), and then of one integer q
for each number, which stands for q times the scale of its block. The scale is the largest absolute
value of the block, divided by 127. The worker keeps the rounding error of a contribution (the
*residual*) and adds it to its next contribution, so that no part of a gradient is lost.

*A tensor without a gradient (-0.0 in every element, `tensors/absent.py`) keeps this meaning: all of
its integers are -128, which stands for no number.* Its residual waits for the next gradient.
"""

import math

import torch

from polyrhythm.core.kinds import BLOCK
from polyrhythm.core.placement.slices import Slice
from polyrhythm.errors import LinkError
from polyrhythm.tensors.absent import NO_GRADIENT, Parts, bits_of
from polyrhythm.tensors.dtypes import tensor_over

_MOST = 127
_ABSENT = -128


def _computed_in(wire: torch.dtype) -> torch.dtype:
    """The dtype of scales, residuals and of the arithmetic, for numbers that are sent as `wire`."""
    return torch.float64 if wire == torch.float64 else torch.float32


def _largest_scale(wire: torch.dtype) -> float:
    """The largest scale with which no number of a block exceeds the range of its dtype."""
    return torch.finfo(wire).max / (_MOST + 1)


def _in_blocks(numbers: torch.Tensor) -> list[tuple[torch.Tensor, slice]]:
    """Return pairs of a table and a range of blocks. Each row of the table contains the numbers of
    one block. If the last block is shorter, it is in a second pair."""
    whole = len(numbers) // BLOCK
    blocks = []
    if whole:
        blocks.append((numbers[: whole * BLOCK].view(whole, BLOCK), slice(0, whole)))
    if whole * BLOCK < len(numbers):
        blocks.append((numbers[whole * BLOCK :].view(1, -1), slice(whole, whole + 1)))
    return blocks


def _split(payload: torch.Tensor, length: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """The scales and the integers in a payload of bytes."""
    end = -(-length // BLOCK) * dtype.itemsize
    return payload[:end].view(dtype), payload[end:].view(torch.int8)


class Quantiser:
    """Quantises the slices of one worker's contributions. `keeps_residuals`: the rounding errors
    are kept here. Otherwise they stay in the worker's parameters: the policy lets the worker
    continue from its parameters minus what it has sent (`FlatModel.rebase`)."""

    def __init__(self, *, keeps_residuals: bool) -> None:
        self._keeps = keeps_residuals
        self._residuals: dict[int, torch.Tensor] = {}
        self._scratch: dict[torch.dtype, torch.Tensor] = {}

    def forget(self) -> None:
        """Drop all residuals: the contributions that they belong to may not have counted."""
        self._residuals.clear()

    def residual(self, slice_: int) -> torch.Tensor | None:
        return self._residuals.get(slice_)

    @torch.no_grad()
    def quantise(self, slice_: Slice, numbers: torch.Tensor, payload: torch.Tensor) -> None:
        """Write a slice of a contribution to `payload`, a tensor of bytes. The numbers must be
        finite. Without residuals, `numbers` becomes what the server will read."""
        wire = numbers.dtype
        dtype = _computed_in(wire)
        scales, integers = _split(payload, slice_.length, dtype)
        absent = _absent_parts(slice_, numbers)
        if self._keeps:
            values = self._residuals.get(slice_.id)
            if values is None:
                values = self._residuals[slice_.id] = torch.zeros(slice_.length, dtype=dtype)
        else:
            values = numbers.to(dtype, copy=bool(absent))
        waiting = [values[first:end].clone() for first, end in absent]
        if self._keeps:
            values.add_(numbers)
        for first, end in absent:
            values[first:end].zero_()
        largest = _find_scales(values, scales, wire)
        # adding the residual has made a number overflow: leave the residual out
        if not math.isfinite(largest):
            values.copy_(numbers)
            largest = _find_scales(values, scales, wire)
        limited = largest > _MOST * _largest_scale(wire)
        rounded = self._round(values, scales, integers, limited=limited)
        for first, end in absent:
            integers[first:end].fill_(_ABSENT)
        if self._keeps:
            _subtract(values, rounded, scales, wire)
            for (first, end), before in zip(absent, waiting, strict=True):
                values[first:end].copy_(before)
        else:
            _scale(rounded, scales)
            numbers.copy_(rounded)
            for first, end in absent:
                numbers[first:end].fill_(NO_GRADIENT)

    def _round(
        self,
        values: torch.Tensor,
        scales: torch.Tensor,
        integers: torch.Tensor,
        *,
        limited: bool,
    ) -> torch.Tensor:
        """Write the integers, and return them as floating-point numbers. `limited`: a scale is
        smaller than its block needs, because of the range of the dtype."""
        scratch = self._scratch.get(values.dtype)
        if scratch is None or len(scratch) < len(values):
            scratch = self._scratch[values.dtype] = torch.empty_like(values)
        rounded = scratch[: len(values)]
        factors = torch.where(scales > 0, scales.reciprocal(), 0.0)
        both = zip(_in_blocks(values), _in_blocks(rounded), strict=True)
        for (block, rows), (into, _) in both:
            torch.mul(block, factors[rows, None], out=into)
        rounded.round_()
        if limited:
            rounded.clamp_(-_MOST, _MOST)
        integers.copy_(rounded)
        return rounded


def _scale(integers: torch.Tensor, scales: torch.Tensor) -> None:
    """Replace integers by the numbers that they represent."""
    for block, rows in _in_blocks(integers):
        block.mul_(scales[rows, None])


def _subtract(
    values: torch.Tensor, integers: torch.Tensor, scales: torch.Tensor, wire: torch.dtype
) -> None:
    """Subtract the numbers that the integers represent, in the dtype in which a server reads
    them."""
    if wire != values.dtype:
        _scale(integers, scales)
        values.sub_(integers.to(wire))
        return
    both = zip(_in_blocks(values), _in_blocks(integers), strict=True)
    for (block, rows), (sent, _) in both:
        # `addcmul_` reads the memory once; multiplying and subtracting would read it twice
        block.addcmul_(sent, scales[rows, None], value=-1)


def _absent_parts(slice_: Slice, numbers: torch.Tensor) -> Parts:
    """The tensors in a slice for which the worker has no gradient."""
    bits, nothing = bits_of(numbers)
    # reading an element of a numpy array takes less time than reading one of a tensor
    known = bits.numpy()
    return tuple(
        (first, end)
        for first, end in slice_.parts
        if known.item(first) == nothing and bool((bits[first:end] == nothing).all())
    )


def _find_scales(values: torch.Tensor, scales: torch.Tensor, wire: torch.dtype) -> float:
    """Write the scale of each block. A block whose scale would be smaller than the smallest normal
    number gets the scale 0. Returns the largest absolute value; if it is not finite, the scales
    cannot be used."""
    for block, rows in _in_blocks(values):
        torch.maximum(block.amax(1), block.amin(1).neg_(), out=scales[rows])
    largest = float(scales.max().item())
    scales.div_(_MOST).clamp_(max=_largest_scale(wire))
    scales.masked_fill_(scales < torch.finfo(scales.dtype).tiny, 0.0)
    return largest


def read_quantised(slice_: Slice, data: memoryview, wire: torch.dtype) -> torch.Tensor:
    """The numbers of a quantised slice, in the dtype in which it would be sent exactly. Raises
    LinkError unless the payload is one that a `Quantiser` can write."""
    if not wire.is_floating_point:
        raise LinkError(
            f"the peer sent quantised numbers for slice {slice_.id}, but numbers of {wire} must be"
            " sent exactly"
        )
    dtype, length = _computed_in(wire), slice_.length
    nbytes = -(-length // BLOCK) * dtype.itemsize + length
    if len(data) != nbytes:
        raise LinkError(
            f"the peer sent {len(data)} bytes for slice {slice_.id}, which has {nbytes} bytes when it"
            " is quantised"
        )
    scales, integers = _split(tensor_over(data, torch.uint8), length, dtype)
    # check a copy: a sender that shares the memory could change it after the check
    scales = scales.clone()
    if not bool(((scales >= 0) & (scales <= _largest_scale(wire))).all()):
        raise LinkError(
            f"the peer sent slice {slice_.id} with a scale that is negative, too large or NaN"
        )
    numbers = torch.empty(length, dtype=dtype)
    both = zip(_in_blocks(integers), _in_blocks(numbers), strict=True)
    for (block, rows), (into, _) in both:
        into.copy_(block).mul_(scales[rows, None])
    if length and integers.min().item() == _ABSENT:
        _mark_absent(slice_, integers, numbers)
    return numbers.to(wire)


def _mark_absent(slice_: Slice, integers: torch.Tensor, numbers: torch.Tensor) -> None:
    """Write -0.0, which means "no gradient", for the tensors without a gradient."""
    absent = integers == _ABSENT
    for first, end in slice_.parts:
        if bool(absent[first:end].all()):
            numbers[first:end].fill_(NO_GRADIENT)
            absent[first:end] = False
    if bool(absent.any()):
        raise LinkError(
            f"the peer sent slice {slice_.id} with the integer {_ABSENT}, which stands for a tensor"
            " without a gradient, in a tensor that has other integers"
        )
