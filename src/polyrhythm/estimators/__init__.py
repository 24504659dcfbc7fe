"""Estimators in the manner of scikit-learn. Import them from `polyrhythm.cluster`, `.mixture`,
`.linear_model` and `.decomposition`. They use scikit-learn's validation and base classes. *All
computation is in `polyrhythm.learn.pointwise`.*"""
