"""Addresses that need no connection to be judged. Commands check them before they import anything
that connects."""

ANY_HOST = ("0.0.0.0", "::")
"""A server that listens on one of these listens on every address of its machine. A peer cannot
connect to them."""


def is_loopback(host: str) -> bool:
    """Whether this address reaches only this machine itself."""
    return host in ("localhost", "::1") or host.startswith("127.")
