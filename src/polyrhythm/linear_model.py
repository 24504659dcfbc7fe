"""Linear models with the interface of scikit-learn."""
