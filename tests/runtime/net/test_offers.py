"""What the handshake asks of a link follows from what the link can do, not from its name."""

import pytest

from polyrhythm.core.link_kinds import LOCAL, MEMORY, TCP, LinkKind, may_have_references
from polyrhythm.io.memory import memory_pair
from polyrhythm.runtime.net.handshake import must_prove, offers
from polyrhythm.wire.digests import Digest

TLS = LinkKind("tls", has_payload_references=False, is_within_host=False, is_encrypted=True)


@pytest.mark.parametrize(
    ("kind", "preferred", "proves"),
    [
        (TCP, Digest.XXH3, True),
        (TLS, Digest.NONE, True),
        (LOCAL, Digest.NONE, False),
        (MEMORY, Digest.NONE, False),
    ],
)
def test_a_link_needs_a_digest_and_a_proof_only_if_nothing_else_protects_it(
    kind: LinkKind, preferred: Digest, proves: bool
) -> None:
    link, _ = memory_pair("here", "there")
    link.kind = kind
    assert offers("auto", kind)[0] == preferred
    assert must_prove(link) == proves


def test_only_a_forced_link_without_references_rules_them_out() -> None:
    assert [may_have_references(choice) for choice in ("auto", "local", "tcp")] == [
        True,
        True,
        False,
    ]
