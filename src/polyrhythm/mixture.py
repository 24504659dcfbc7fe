"""Mixtures with the interface of scikit-learn: `GaussianMixture`."""

from polyrhythm.estimators.mixture import GaussianMixture

__all__ = ["GaussianMixture"]
