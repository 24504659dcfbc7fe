"""What the estimators take from scikit-learn: base classes, validation and warnings. *No other module
imports scikit-learn, and nothing here computes* (import-linter and a test check this)."""

try:
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        ClassNamePrefixFeaturesOutMixin,
        ClusterMixin,
        DensityMixin,
        TransformerMixin,
    )
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import check_random_state, compute_class_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight as check_sample_weight
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "the estimators need scikit-learn 1.6 or newer: pip install 'polyrhythm[sklearn]'"
    ) from error

__all__ = [
    "BaseEstimator",
    "ClassNamePrefixFeaturesOutMixin",
    "ClassifierMixin",
    "ClusterMixin",
    "ConvergenceWarning",
    "DensityMixin",
    "TransformerMixin",
    "check_classification_targets",
    "check_is_fitted",
    "check_random_state",
    "check_sample_weight",
    "compute_class_weight",
    "validate_data",
]
