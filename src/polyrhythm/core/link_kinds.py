"""The kinds of links, and what each of them can do. *Code asks for these abilities instead of
comparing the names of kinds*, so a new kind of link only needs a new entry here.
"""

import msgspec

AUTO = "auto"
"""The value of `--link` that chooses a link within the host if both ends are on one host."""


class LinkKind(msgspec.Struct, frozen=True):
    name: str
    """The name for users: in `--link`, in the journal and in messages."""
    has_payload_references: bool
    """Whether the peer reads payloads in the sender's memory, without a copy. If so, the sender may
    reuse the memory only when the peer's messages allow it."""
    is_within_host: bool
    """Whether both ends are on one host. If not, both must prove that they know the job's secret,
    and a fault of the network may leave the link open."""
    is_encrypted: bool = False
    """Whether the link protects its bytes against reading and changes by others."""

    @property
    def needs_digest(self) -> bool:
        """Whether a digest of every frame finds errors that the link itself would not find."""
        return not (self.is_within_host or self.is_encrypted)


TCP = LinkKind("tcp", has_payload_references=False, is_within_host=False)
LOCAL = LinkKind("local", has_payload_references=True, is_within_host=True)
MEMORY = LinkKind("memory", has_payload_references=True, is_within_host=True)

_KINDS = {kind.name: kind for kind in (TCP, LOCAL, MEMORY)}


def find_link_kind(name: str) -> LinkKind | None:
    """The kind with this name; None if there is none, as for `auto` or the links of a simulation."""
    return _KINDS.get(name)


def may_have_references(choice: str) -> bool:
    """Whether this choice of `--link` allows links over which payloads travel as references."""
    kind = find_link_kind(choice)
    return kind is None or kind.has_payload_references
