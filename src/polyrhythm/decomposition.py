"""Decompositions with the interface of scikit-learn."""
