"""Clustering with the interface of scikit-learn: `KMeans` and `FuzzyCMeans`."""

from polyrhythm.estimators.fuzzy import FuzzyCMeans
from polyrhythm.estimators.kmeans import KMeans

__all__ = ["FuzzyCMeans", "KMeans"]
