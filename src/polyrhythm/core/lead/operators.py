"""Operators: commands of the job's user that send the lead of the running job a request.

*Only a peer that has sent an operator's hello may send a request, and only one. The lead answers
until the request is done or the job is over, and then closes the link. An operator is not a member,
so the job does not wait for it. A request stays valid if the operator's link ends.*
"""

import msgspec

from polyrhythm.core.effects import Drop, Send, SendCode, SendJournal
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.machine import Reason
from polyrhythm.core.names import server_name
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.operator import CODE, NO_SERVER


class Operator(msgspec.Struct):
    name: str
    asked: str = ""
    """The request of the operator, with the server that it is about; empty before the operator has
    sent it."""


class Operators:
    def __init__(self, operators: dict[str, Operator], outbox: LeadOutbox) -> None:
        """`operators`: the operators by the names of their links."""
        self._operators = operators
        self._outbox = outbox

    def join(self, link: str, hello: m.OperatorHello) -> None:
        self._operators[link] = Operator(hello.name)

    def on_link_closed(self, link: str) -> None:
        """Forget the operator at the other end of this link. Other links are ignored."""
        self._operators.pop(link, None)

    def on_request(self, link: str, request: m.OperatorRequest) -> str | None:
        """Register the request that has arrived over `link`. Returns the operator's name; None if
        the request was refused."""
        operator = self._operators.get(link)
        if operator is None:
            self.refuse(link, Reason("not-an-operator"))
            return None
        if operator.asked:
            self.refuse(link, Reason("asked-already", {"name": operator.name}))
            return None
        operator.asked = _asked(request.what, request.server)
        return operator.name

    def refuse(self, link: str, fault: Reason) -> None:
        """Tell this operator that its request cannot be carried out."""
        self._operators.pop(link, None)
        self._outbox.refuse(link, fault)

    # -- answers -------------------------------------------------------------------------------

    def tell(self, what: str, reason: Reason) -> None:
        """Tell all operators that have sent this request about its progress."""
        for link in self._waiting(what):
            self._outbox.do(
                Send(link, m.OperatorAnswer(term=self._outbox.seat.term, reason=reason))
            )

    def done(
        self, what: str, reason: Reason, *, failed: bool = False, server: int = NO_SERVER
    ) -> None:
        """Send the last answer to all operators with this request: it was carried out or has
        failed. `server`: the server that the request is about, if any."""
        self._end(_asked(what, server), reason, failed=failed)

    def _end(self, asked: str, reason: Reason, *, failed: bool) -> None:
        term = self._outbox.seat.term
        for link in self._waiting(asked):
            answer = m.OperatorAnswer(term=term, reason=reason, done=True, failed=failed)
            self._outbox.do(Send(link, answer))
            self._outbox.do(Drop(link, reason))
            del self._operators[link]

    def send_code(self) -> None:
        """Let the process of the lead send the job's file to the operators that asked for it."""
        for link in self._waiting(CODE):
            self._outbox.note("code-sent", name=self._operators[link].name)
            self._outbox.do(SendCode(link))
            self._outbox.do(Drop(link, Reason("code-sent")))
            del self._operators[link]

    def send_journal(self, link: str, at: int) -> None:
        """Let the process of the lead send a page of the journal to this operator. The journal does
        not mention this request, or every reading would make it longer."""
        self._outbox.do(SendJournal(link, at))
        self._outbox.do(Drop(link, Reason("journal-sent")))
        del self._operators[link]

    def close(self, reason: Reason, *, failed: bool) -> None:
        """Send every operator its last answer: the job is over."""
        for asked in sorted({operator.asked for operator in self._operators.values()}):
            self._end(asked, reason, failed=failed)

    def _waiting(self, asked: str) -> list[str]:
        return [link for link, operator in self._operators.items() if operator.asked == asked]


def _asked(what: str, server: int) -> str:
    return what if server == NO_SERVER else f"{what} {server_name(server)}"
