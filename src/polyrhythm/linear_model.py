"""Linear models with the interface of scikit-learn: `LogisticRegression`."""

from polyrhythm.estimators.logistic import LogisticRegression

__all__ = ["LogisticRegression"]
