"""How long properties search: POLYRHYTHM_TORTURE multiplies the number of examples."""

import os

from hypothesis import settings

TORTURE = int(os.environ.get("POLYRHYTHM_TORTURE", "1"))

settings.register_profile(
    "polyrhythm",
    max_examples=60 * TORTURE,
    deadline=None,
    database=None,
    print_blob=True,
    derandomize=TORTURE == 1,
)
settings.load_profile("polyrhythm")
