"""Sockets, shared memory, and the files of a job's secret. No other layer touches sockets or shared
memory."""
