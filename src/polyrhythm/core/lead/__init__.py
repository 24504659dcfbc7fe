"""The lead: the machine that coordinates a job."""
