"""Policies without rounds: every contribution is folded when it arrives."""
