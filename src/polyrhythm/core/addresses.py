"""What an address says about the processes that can reach it."""


def is_loopback(host: str) -> bool:
    """Whether this address reaches only this machine itself."""
    return host in ("localhost", "::1") or host.startswith("127.")
