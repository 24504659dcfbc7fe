"""Checks of addresses that need no connection. Commands make them before they import anything that
connects."""

ANY_HOST = ("0.0.0.0", "::")
"""A server that listens on one of these addresses listens on every address of its machine. A peer
cannot connect to these addresses themselves."""
