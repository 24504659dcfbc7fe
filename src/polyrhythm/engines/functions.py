"""Sends the function that workers run, from the process that defines it to the workers.

A function of a script or of a notebook is not in a module that a worker could import. So it is
pickled by value, together with the functions, classes and variables of the script that it uses. A
function of an imported module is pickled by name, and the worker imports the module.
"""

import pickle
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from polyrhythm.engines.requests import PackedMain
from polyrhythm.errors import UsageError


def pack_main(main: Callable[[Any], None]) -> PackedMain:
    import cloudpickle  # imported here, because most commands send no function

    module = sys.modules.get(getattr(main, "__module__", None) or "")
    by_value = module is not None and _has_no_source(module)
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        pickled = cloudpickle.dumps(main)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"{name_of(main)} cannot be sent to the workers: {error}; make such objects inside the"
            " function, so that every worker makes its own"
        ) from None
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    return PackedMain(pickled, list(sys.path))


def unpack_main(packed: PackedMain, *, elsewhere: bool = False) -> Callable[[Any], None]:
    """`elsewhere`: this process is not on the machine that has packed the function, and keeps the
    folders from which it imports modules itself."""
    own = [each for each in sys.path if each not in packed.path] if elsewhere else []
    sys.path[:] = [*own, *packed.path]
    main = pickle.loads(packed.pickled)
    assert callable(main)
    return main  # type: ignore[no-any-return]


def name_of(main: Callable[[Any], None]) -> str:
    return str(getattr(main, "__name__", type(main).__name__))


def _has_no_source(module: ModuleType) -> bool:
    """Whether a worker cannot import this module, because it was made by running code that is not
    in a file. cloudpickle recognises `__main__` itself."""
    return module.__spec__ is None and module.__name__ != "__main__"
