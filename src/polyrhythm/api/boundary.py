"""The boundary where errors leave polyrhythm for the user's program. Their tracebacks end here, at
the call that the user wrote."""

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from polyrhythm.errors import PolyrhythmError

_VARIABLE = "POLYRHYTHM_DEBUG"
Function = TypeVar("Function", bound=Callable[..., Any])


def public(function: Function) -> Function:
    """A decorator for a function that users call. It removes all other frames inside polyrhythm
    from the traceback of an error of `polyrhythm.errors`. `debug=True`, or the variable
    POLYRHYTHM_DEBUG, keeps them."""

    @functools.wraps(function)
    def call(*given: Any, **keywords: Any) -> Any:
        try:
            return function(*given, **keywords)
        except PolyrhythmError as raised:
            if keywords.get("debug") or os.environ.get(_VARIABLE):
                raise
            error = raised
        raise error.with_traceback(None)  # POLYRHYTHM_DEBUG=1 shows all frames

    return cast(Function, call)
