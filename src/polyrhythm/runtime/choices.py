"""The values that flags accept, in a module that does not import torch."""

LINKS = ("auto", "tcp", "local")
DIGESTS = ("auto", "none", "xxh3", "sha1", "blake2b")
WIRE_DTYPES = ("same", "bf16")
ASYNC_SCALES = ("members", "none")
ASYNC_MOMENTA = ("round", "contribution")
ON_ERROR = ("go-on", "end")
UPDATERS = ("optimizer", "addition")
