"""Algorithms that are written point by point: expectation maximisation and sums over all points."""
