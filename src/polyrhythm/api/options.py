"""Checks the keywords of a function before it does anything: their names and their types."""

import difflib
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from polyrhythm.errors import UsageError


def check_options(
    function: Callable[..., Any], given: Mapping[str, object], unknown: Iterable[str]
) -> None:
    """Raise UsageError if an option is not known, naming the nearest known one, or if its value has
    a type that the function does not accept."""
    known = inspect.signature(function).parameters
    names = [name for name, each in known.items() if each.kind is each.KEYWORD_ONLY]
    for name in unknown:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
        raise UsageError(f"{function.__name__} has no option {name!r}: the nearest is {near!r}")
    for name in names:
        accepted = tuple(_classes(known[name].annotation))
        value = given[name]
        fits = isinstance(value, accepted) or (isinstance(value, int) and float in accepted)
        if not fits or (isinstance(value, bool) and bool not in accepted):
            words = " or ".join(each.__name__ for each in accepted if each is not type(None))
            raise UsageError(f"{name} is {value!r}: it must be of type {words}")


def _classes(annotation: Any) -> Iterable[type]:
    """The classes of which a value may be an instance."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _classes(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _classes(member)
    elif origin is not None:
        yield origin
    else:
        yield type(None) if annotation is None else annotation
