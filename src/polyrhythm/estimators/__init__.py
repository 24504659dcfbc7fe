"""Estimators in the manner of scikit-learn. Import them from `polyrhythm.cluster`, `.mixture`,
`.linear_model` and `.decomposition`. They need scikit-learn for its conventions only: its validation
and its base classes. *The arithmetic is that of `polyrhythm.learn.pointwise`.*"""
