"""Compares polyrhythm's estimators with those of scikit-learn."""
