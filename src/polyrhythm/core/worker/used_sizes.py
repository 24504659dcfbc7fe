"""Learns which batch sizes a training loop uses.

A loop may drop batches that are too small for it: `if len(batch) < 32: continue`. Under policies that
choose the batch size, such a loop would get small batches again and again, and make few steps. *After
a batch that the loop has dropped, the next one has the full size. If every batch that the loop has
used was larger than every batch that it has dropped, no batch is planned smaller than the smallest
used batch.* A loop that drops batches because of their contents also uses small batches, so this rule
does not apply to it for long.
"""

MANY = 0.2
"""If a loop drops more than this share of its points, a warning is given."""
_ENOUGH = 20
"""The share of points that a loop drops is judged only after this many batches."""
_NONE_USED = 3
"""If a loop has dropped all of its batches, the warning comes after this many batches."""


class UsedSizes:
    def __init__(self) -> None:
        self.points = 0
        self.dropped_points = 0
        self._batches = 0
        self._smallest_used = 0
        """The points of the smallest batch that was used; 0 if none was used."""
        self._largest_dropped = 0
        self._full = False
        """Whether the last batch was dropped, so that the next one has the full size."""
        self._warned = False

    def used(self, points: int) -> None:
        """The loop has computed a gradient with a batch of this many points."""
        self._count(points)
        self._smallest_used = min(self._smallest_used or points, points)
        self._full = False

    def dropped(self, points: int) -> None:
        """The loop has asked for the next batch without computing a gradient with this one."""
        self._count(points)
        self.dropped_points += points
        self._largest_dropped = max(self._largest_dropped, points)
        self._full = True

    def _count(self, points: int) -> None:
        self._batches += 1
        self.points += points

    def least(self, batch: int) -> int:
        """The fewest points that the next batch should have, if the loop asks for batches of this
        size."""
        if self._full:
            return batch
        return max(1, min(batch, self.least_used))

    @property
    def least_used(self) -> int:
        """The size of the smallest batch that the loop has used, if the loop drops all smaller
        batches; otherwise 0."""
        return self._smallest_used if self._smallest_used > self._largest_dropped > 0 else 0

    def warns(self) -> bool:
        """Whether it is time to say that the loop drops many points. This is said once."""
        enough = _ENOUGH if self._smallest_used else _NONE_USED
        many = self._batches >= enough and self.dropped_points > MANY * self.points
        if self._warned or not many:
            return False
        self._warned = True
        return True
