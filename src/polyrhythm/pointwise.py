"""For algorithms that are written point by point: see docs/estimators.md for a tutorial."""

from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch, Check
from polyrhythm.learn.pointwise.runner import Fit, run_pointwise
from polyrhythm.learn.pointwise.source import ArraySource, Source

__all__ = ["Algorithm", "ArraySource", "Batch", "Check", "Fit", "Source", "run_pointwise"]
