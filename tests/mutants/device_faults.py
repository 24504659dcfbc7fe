"""Faults of devices: which worker computes where, and how CUDA devices are found."""

from tests.mutants.mutant import Mutant, mutant

_DECISIONS = "tests/core/test_devices.py"

DEVICES: tuple[Mutant, ...] = (
    mutant(
        "all-workers-get-the-first-gpu",
        "Workers that ask for any CUDA device all get the first one.",
        "core:assign",
        "turns % found.count",
        "0",
        f"{_DECISIONS}::test_workers_get_the_items_of_the_list_in_turn",
    ),
    mutant(
        "a-device-too-many",
        "The number after the last CUDA device is accepted.",
        "core:_check",
        'int(match["number"]) >= found.count',
        'int(match["number"]) > found.count + 9',
        f"{_DECISIONS}::test_a_device_that_does_not_exist_is_refused_with_those_that_do",
    ),
    mutant(
        "sharing-is-not-said",
        "No message says that workers share a GPU.",
        "core:_shared",
        "len(users) > 1",
        "False",
        f"{_DECISIONS}::test_a_message_names_the_workers_that_share_a_cuda_device",
    ),
    mutant(
        "the-fork-server-counts-itself",
        "The process that asks for CUDA devices looks for them itself, which may initialise CUDA.",
        "engines:look_for_cuda_in_child",
        "os.pipe()",
        "(look_for_cuda(), os.pipe())[1]",
        "tests/engines/test_cuda.py"
        "::test_a_count_that_initialises_cuda_does_not_do_so_in_the_process_that_asks",
    ),
)
