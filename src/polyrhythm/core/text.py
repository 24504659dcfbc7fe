"""Limits on names and reasons that peers send: their length and their characters.

*A name with control characters, or of more than 100 characters, is refused. A reason is cut at
1,000 characters, and its control characters are escaped.* Both happen before a name or a reason is
kept, sent on or written to the journal.
"""

from polyrhythm.wire.messages.reasons import Reason

MOST_NAME = 100
MOST_REASON = 1_000
_CUT = "..."


def name_fault(name: str) -> str | None:
    """Why this text is refused as a name; None if it is accepted."""
    if not name.strip():
        return "it gave no name"
    if len(name) > MOST_NAME:
        return f"its name has {len(name)} characters, and at most {MOST_NAME} are accepted"
    if not name.isprintable():
        return "its name has control characters"
    return None


def refusal(name: str, fault: str) -> str:
    """The sentence that refuses a process. It contains the name, unless the name itself is the
    fault."""
    return f"{name} was refused: {fault}" if name_fault(name) is None else f"refused: {fault}"


def plain(text: str) -> str:
    """The text with its control characters escaped, cut to the accepted length."""
    text = text[: MOST_REASON + 1]  # escaping makes it longer, never shorter
    if not text.isprintable():
        text = "".join(c if c.isprintable() else _escaped(c) for c in text)
    if len(text) > MOST_REASON:
        text = text[: MOST_REASON - len(_CUT)] + _CUT
    return text


def plain_reason(reason: Reason) -> Reason:
    """The reason with its code and all of its texts made plain."""
    fields = {
        plain(key): plain(value) if isinstance(value, str) else value
        for key, value in reason.fields.items()
    }
    return Reason(plain(reason.code), fields)


def shown(text: str) -> str:
    """The text with its control characters escaped, except line breaks, so that a name or a reason
    cannot move the cursor of a terminal or set its colour."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def name_order(name: str) -> tuple[int, str]:
    """The order of workers by name, in which worker-2 comes before worker-10."""
    return len(name), name
