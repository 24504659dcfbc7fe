"""Limits on names and reasons that peers send: their length and their characters.

*A name with control characters, or of more than 100 characters, is refused. A reason is cut at
1,000 characters, and its control characters are escaped.* Names and reasons are checked before they
are stored, sent on or written to the journal.
"""

from polyrhythm.wire.messages.reasons import Reason

MOST_NAME = 100
MOST_REASON = 1_000
_CUT = "..."


def name_fault(name: str) -> Reason | None:
    """Why this text is refused as a name; None if it is accepted. The reason does not contain the
    text."""
    if not name.strip():
        return Reason("name-missing")
    if len(name) > MOST_NAME:
        return Reason("name-too-long", {"characters": len(name), "most": MOST_NAME})
    if not name.isprintable():
        return Reason("name-unprintable")
    return None


def plain(text: str) -> str:
    """The text with its control characters escaped, cut to the longest length that is accepted."""
    text = text[: MOST_REASON + 1]  # cut before escaping, which makes a text longer
    if not text.isprintable():
        text = "".join(c if c.isprintable() else _escaped(c) for c in text)
    if len(text) > MOST_REASON:
        text = text[: MOST_REASON - len(_CUT)] + _CUT
    return text


def plain_reason(reason: Reason) -> Reason:
    """The reason with its code and all of its texts escaped and cut by `plain`."""
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
    """A sort key by which worker-2 comes before worker-10."""
    return len(name), name
