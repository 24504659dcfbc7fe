"""Turns every exception of a store into a `StoreError` whose text is one line.

The texts of obstore's exceptions have many lines, with the request and its whole response. The text
of a `StoreError` names the store and the reason. It contains no credentials: the query part of a
URL, which may be a signature, is removed.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator

from polyrhythm.errors import ObjectMissing, StoreError, StoreFull

_MOST_CHARACTERS = 200
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_INSUFFICIENT_STORAGE = "507"
_QUERY = re.compile(r"\?\S+")
_METADATA = ("169.254.", "metadata.google", "MissingAccount", "Account must be specified")
"""If the text of an error contains one of these addresses, no credentials were found: without
credentials, obstore asks the cloud's metadata service at these addresses."""
_WORDS = {
    errno.ENOSPC: "no space is left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
}


def shown_url(url: str) -> str:
    """The URL without its user, password and query, which may be secret."""
    scheme, found, rest = url.partition("://")
    if not found:
        return url
    place, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"


@contextlib.contextmanager
def explained(action: str, url: str) -> Iterator[None]:
    """Turn an exception in the body of the `with` statement into a StoreError with the text `cannot
    <action> <url>: <reason>`."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
            raise StoreError(f"cannot {action} {url}: the bucket does not exist") from None
        raise ObjectMissing(f"cannot {action} {url}: it does not exist") from None
    except (BaseError, OSError, ValueError) as error:
        kind = StoreFull if _is_full(error) else StoreError
        raise kind(f"cannot {action} {url}: {reason_of(error)}") from None


def reason_of(error: Exception) -> str:
    """The reason for an exception of obstore or of the operating system, in one line."""
    text = str(error).partition("\n\nDebug source")[0]
    if (number := _os_error(error, text)) is not None:
        return _WORDS.get(number, os.strerror(number).lower())
    if any(word in text for word in _METADATA):
        return "no credentials were found; set the variables of the store (see the guide)"
    code = _CODE.search(text)
    if status := _STATUS.search(text):
        answer = f"{status[1]} {code[1]}" if code else status[1]
        if code and code[1] in ("NoSuchBucket", "ContainerNotFound"):
            return "the bucket does not exist"
        if status[1] in ("401", "403"):
            return f"the store refuses these credentials ({answer})"
        if status[1].startswith("5"):
            return f"the store reports an internal error ({answer})"
        return f"the store refuses the request ({answer})"
    if "HTTP error" in text:
        return "the store does not answer"
    return _QUERY.sub("", text.partition("\n")[0])[:_MOST_CHARACTERS]


def _is_full(error: Exception) -> bool:
    text = str(error)
    status = _STATUS.search(text)
    full = status is not None and status[1] == _INSUFFICIENT_STORAGE
    return full or _os_error(error, text) in (errno.ENOSPC, errno.EDQUOT)


def _os_error(error: Exception, text: str) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _OS_ERROR.search(text)
    return None if found is None else int(found[1])
