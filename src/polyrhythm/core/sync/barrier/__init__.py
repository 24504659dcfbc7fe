"""Policies with rounds: the lead orders a fold when the barrier of the round is complete."""
