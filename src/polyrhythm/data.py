"""Tables of points in files: `RowGroups` for `worker.batches`, and `open_points` for point-wise
algorithms. `DatasetSource` gives such algorithms the items of a torch data set, and `open_ratings`
reads ratings for `NMF`."""

from polyrhythm.learn.data.ratings import Ratings, open_ratings
from polyrhythm.learn.data.row_groups import RowGroups
from polyrhythm.learn.data.tables import open_points
from polyrhythm.learn.data.torch_points import DatasetSource

__all__ = ["DatasetSource", "Ratings", "RowGroups", "open_points", "open_ratings"]
