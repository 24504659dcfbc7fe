"""Schemes: which server should be the primary of each slice, and which servers should hold its
copies.

*A scheme only names the goal of placement. The lead leads the slices there one by one
(`steps.py`), so a scheme need not know what moves cost, or in which order servers came.* A scheme is
a pure function: for the same servers, sizes and routes it gives the same goal. While slices move
towards a goal, it must give this goal again.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from polyrhythm.core.placement.ring import Ring
from polyrhythm.wire.messages import Route


class Scheme(Protocol):
    def place(
        self,
        sizes: Sequence[int],
        servers: Sequence[int],
        replicas: int,
        stays: Mapping[int, Sequence[int]],
    ) -> tuple[Route, ...]:
        """The goal for slices of these sizes in bytes: for each slice, its primary and `replicas`
        other servers, or as many as there are. `stays`: per slice that is on servers already, those
        that can be its primary without copying, the best one first. Slices are listed in the order
        in which they came to their servers."""


class RingScheme:
    """Consistent hashing with bounded loads (`ring.py`): servers hold equal numbers of slices."""

    def place(
        self,
        sizes: Sequence[int],
        servers: Sequence[int],
        replicas: int,
        stays: Mapping[int, Sequence[int]],
    ) -> tuple[Route, ...]:
        return Ring(servers).place(len(sizes), replicas, stays)


RING = "ring"
SCHEMES: dict[str, Scheme] = {RING: RingScheme()}
