"""What other servers confirm in a routing epoch that the slices here are not in yet.

*A confirmation covers all steps before it, so a run of them of one server, epoch and kind is kept as
one, with the latest row of every worker. A server adopts states in a few epochs at most; one that says
more is not believed. What a server said is dropped with its link.*
"""

import msgspec

from polyrhythm.wire.messages import Adopted, Copied

MOST_RUNS = 64


class EarlyAcks:
    def __init__(self) -> None:
        self._kept: dict[int, list[Copied | Adopted]] = {}
        """Per server, in the order in which they came."""

    def keep(self, message: Copied | Adopted) -> bool:
        """False if its sender has said too much."""
        kept = self._kept.setdefault(message.server, [])
        last = kept[-1] if kept else None
        if last is not None and (type(last), last.routing) == (type(message), message.routing):
            rows = {row.worker: row for row in (*last.rows, *message.rows)}
            kept[-1] = msgspec.structs.replace(message, rows=tuple(rows.values()))
            return True
        if len(kept) >= MOST_RUNS:
            return False
        kept.append(message)
        return True

    def take(self) -> list[Copied | Adopted]:
        """All of them, in the order of each server; nothing stays."""
        kept, self._kept = self._kept, {}
        return [message for messages in kept.values() for message in messages]

    def forget(self, server: int) -> None:
        self._kept.pop(server, None)
