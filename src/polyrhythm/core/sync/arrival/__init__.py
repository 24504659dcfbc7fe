"""Policies without rounds: servers fold every contribution when it arrives."""
