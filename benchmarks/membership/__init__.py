"""Measures how slow, dead, silent and joining workers delay the other workers."""
