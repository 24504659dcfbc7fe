"""Policies with rounds: a fold takes place when a barrier is complete."""
