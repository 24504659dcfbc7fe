"""Policies with rounds: the lead orders a fold when all members have arrived at the round's
barrier."""
