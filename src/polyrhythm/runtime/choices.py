"""The values that command-line flags accept. This module does not import torch, so that commands
start quickly."""

from polyrhythm.core.kinds import BY_POINTS, BY_WORKERS, EXACT, INT8
from polyrhythm.core.link_kinds import AUTO, LOCAL, TCP
from polyrhythm.core.server.stepping import ASYNC_SCALES as ASYNC_SCALES

LINKS = (AUTO, TCP.name, LOCAL.name)
DIGESTS = ("auto", "none", "xxh3", "sha1", "blake2b")
WIRE_DTYPES = ("same", "bf16")
PUSHES = (EXACT, INT8)
ASYNC_MOMENTA = ("round", "contribution")
ON_ERROR = ("go-on", "end")
ON_NAN = ("refuse", "skip", "end")
WEIGHTS = (BY_POINTS, BY_WORKERS)
UPDATERS = ("optimizer", "addition")
