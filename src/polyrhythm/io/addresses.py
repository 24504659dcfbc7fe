"""Checks of addresses that need no connection. Commands make them before they import anything that
connects."""

from polyrhythm.core.addresses import is_loopback as is_loopback

ANY_HOST = ("0.0.0.0", "::")
"""A server that listens on one of these addresses listens on every address of its machine. A peer
cannot connect to these addresses themselves."""
