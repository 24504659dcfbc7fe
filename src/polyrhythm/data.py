"""Tables of points in files: `RowGroups` for `worker.batches`, and `open_points` for algorithms that are
written point by point. `DatasetSource` gives such algorithms the items of a torch data set."""

from polyrhythm.learn.data.row_groups import RowGroups
from polyrhythm.learn.data.tables import open_points
from polyrhythm.learn.data.torch_points import DatasetSource

__all__ = ["DatasetSource", "RowGroups", "open_points"]
