"""Our estimators beside scikit-learn's."""
