"""Decompositions with the interface of scikit-learn: `NMF`."""

from polyrhythm.estimators.factors import NMF

__all__ = ["NMF"]
