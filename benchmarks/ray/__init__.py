"""Measures jobs on a Ray cluster (`--engine ray`) beside the local engine and beside plain Ray."""
