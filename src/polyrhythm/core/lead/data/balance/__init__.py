"""Balanced passes (FSP §4): how many points move from slow workers to fast ones, and why."""
