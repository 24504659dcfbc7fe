"""Tables of points in files: `RowGroups` for `worker.batches`, and `open_points` for algorithms that are
written point by point."""

from polyrhythm.learn.data.row_groups import RowGroups
from polyrhythm.learn.data.tables import open_points

__all__ = ["RowGroups", "open_points"]
