"""Faults of quantised pushes (`--push int8`)."""

from tests.mutants.mutant import Mutant, mutant

_MEMORY = "tests/runtime/worker/test_quantised_memory.py"
_NUMBERS = "tests/tensors/test_quantised.py"

PUSHES: tuple[Mutant, ...] = (
    mutant(
        "rounding-errors-are-lost",
        "What quantising leaves out of a contribution is not added to the next one.",
        "tensors:Quantiser.quantise",
        "_subtract(values, rounded, scales, wire)",
        "values.zero_()",
        f"{_MEMORY}::test_what_a_contribution_leaves_out_is_in_the_next_one",
    ),
    mutant(
        "residual-of-a-former-incarnation",
        "A worker that joined again adds what contributions of its former incarnation left out.",
        "runtime:Quantising.quantise",
        "self._quantiser.forget()",
        "pass",
        f"{_MEMORY}::test_a_worker_that_joined_again_carries_no_residual_over",
    ),
    mutant(
        "residual-beside-the-parameters",
        "Under psp, what a contribution leaves out is kept twice.",
        "runtime:Quantising.__init__",
        "not traits_of(job.sync).trains_through",
        "True",
        f"{_MEMORY}::test_a_worker_that_trains_through_keeps_what_was_left_out_in_its_parameters",
    ),
    mutant(
        "quantised-bytes-are-shared",
        "All push buffers share the memory of quantised slices, so a repeated push has other bytes.",
        "runtime:Quantising.quantise",
        "self._rooms.get(buffer)",
        "self._rooms.get(0)",
        f"{_MEMORY}::test_a_slice_that_is_sent_again_has_the_same_bytes[False]",
    ),
    mutant(
        "missing-gradient-becomes-zero",
        "A parameter without a gradient is sent as zeros, so that weight decay changes it.",
        "tensors:_mark_absent",
        "numbers[first:end].fill_(NO_GRADIENT)",
        "numbers[first:end].zero_()",
        f"{_NUMBERS}::test_a_tensor_without_a_gradient_keeps_its_meaning_and_its_residual",
    ),
    mutant(
        "scales-are-not-checked",
        "A server accepts a scale that is negative or not finite.",
        "tensors:read_quantised",
        "((scales >= 0) & (scales <= _largest_scale(wire))).all()",
        "True",
        f"{_NUMBERS}::test_a_scale_that_is_not_one_is_refused[nan]",
    ),
)
