"""Connects a node to a server: `--link auto` uses a local link on the same host, and TCP
otherwise."""

from typing import Protocol

import msgspec

from polyrhythm.core.link_kinds import find_link_kind, may_have_references
from polyrhythm.errors import LinkError, UsageError
from polyrhythm.io.addresses import ANY_HOST
from polyrhythm.io.link import Link
from polyrhythm.io.local import AVAILABLE, dial_local, host_identity
from polyrhythm.io.tcp import dial_tcp
from polyrhythm.runtime.choices import LINKS
from polyrhythm.wire.messages import Address


class Dialer(Protocol):
    shared: bool
    """Whether push buffers should be segments that servers can map."""

    def dial(self, address: Address, peer: str) -> Link: ...


class SocketDialer:
    def __init__(self, link: str) -> None:
        if link not in LINKS:
            raise UsageError(f"--link {link!r} is not known: choose one of {', '.join(LINKS)}")
        kind = find_link_kind(link)
        self._within_host_only = kind is not None and kind.is_within_host
        if self._within_host_only and not AVAILABLE:
            raise UsageError("--link local needs Linux (memfd); use --link tcp here")
        self._may_be_local = may_have_references(link)
        self.shared = self._may_be_local and AVAILABLE

    def dial(self, address: Address, peer: str) -> Link:
        here = bool(address.local) and address.identity == host_identity()
        if self._within_host_only and not here:
            raise LinkError(
                f"--link local: {peer} is on another host, in another network namespace, or"
                " belongs to another user; use --link auto"
            )
        if self._may_be_local and here:
            return dial_local(address.local, peer)
        return dial_tcp(address.host, address.port, peer)


class DialerFromOutside(SocketDialer):
    """Connects a process that a user has started to join a job. A server that listens on all
    addresses of its machine (0.0.0.0) is dialled at `host`, the address at which this process
    reaches the lead."""

    def __init__(self, link: str, host: str) -> None:
        super().__init__(link)
        self._host = host

    def dial(self, address: Address, peer: str) -> Link:
        if address.host in ANY_HOST:
            address = msgspec.structs.replace(address, host=self._host)
        return super().dial(address, peer)
