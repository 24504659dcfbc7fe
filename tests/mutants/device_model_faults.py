"""Faults of models on a device, and of models of half precision."""

from tests.mutants.mutant import Mutant, mutant

_MODEL = "tests/gpu/test_device_model.py"
_SAME = f"{_MODEL}::test_gradients_are_the_same_from_a_device_and_from_the_host[cpu-same-True]"

DEVICE_MODELS: tuple[Mutant, ...] = (
    mutant(
        "kernels-do-not-wait-for-the-version",
        "The user's code computes with parameters that are still being copied to the device.",
        "tensors:DeviceModel._begin_upload",
        "self.copies.join()",
        "pass",
        _SAME,
    ),
    mutant(
        "the-host-does-not-wait-for-the-contribution",
        "A contribution is sent before it has been copied to the host.",
        "tensors:DeviceModel._send",
        "self.copies.synchronise()",
        "pass",
        _SAME,
    ),
    mutant(
        "a-contribution-stays-in-the-bounce-buffer",
        "If the driver cannot pin a push buffer, the contribution is not copied to it.",
        "tensors:DeviceModel._send",
        "copy(push[space][first:end], targets[space][first:end])",
        "pass",
        f"{_MODEL}::test_gradients_are_the_same_from_a_device_and_from_the_host[cpu-same-False]",
    ),
    mutant(
        "the-verdict-of-the-device-is-ignored",
        "A gradient that is not finite is sent.",
        "tensors:DeviceModel._send",
        "bool(self._verdicts[:checked].all())",
        "True",
        f"{_MODEL}::test_a_gradient_that_is_not_finite_is_named[cpu-True-nan]",
    ),
    mutant(
        "a-version-overwrites-local-changes",
        "A version that arrives while the worker trains on is copied to the device at once.",
        "tensors:DeviceModel.land",
        "self._through or self.layout.spaces[slice_.space].buffers or len(data) < _EARLY_NBYTES",
        "self.layout.spaces[slice_.space].buffers or len(data) < _EARLY_NBYTES",
        f"{_MODEL}::test_a_version_that_arrives_does_not_change_the_parameters_before_it_is_adopted[cpu]",
    ),
    mutant(
        "slices-that-came-early-hide-the-others",
        "Small slices of a version are not copied to the device.",
        "tensors:DeviceModel.adopt",
        "[*self._left(), *self._whole_buffers()]",
        "self._whole_buffers()",
        _SAME,
    ),
    mutant(
        "a-version-arrives-over-an-upload",
        "A version is written to memory from which the last one is still copied to the device.",
        "tensors:DeviceModel._claim",
        "self.copies.await_uploads()",
        "pass",
        f"{_MODEL}::test_the_host_waits_once_for_a_contribution_and_not_for_a_version",
    ),
    mutant(
        "the-loss-is-read-too-early",
        "The loss of a step is read before it has been copied to the host.",
        "learn:Exchange._read",
        "self._copies.fetch(loss)",
        "float(self._copies.fetch(loss))",
        "tests/gpu/test_device_jobs.py::test_the_loss_of_a_model_on_a_device_is_reported[cpu]",
    ),
    mutant(
        "device-time-counts-as-transferring",
        "Kernels that run after the call of step() do not count as computing.",
        "learn:Exchange._contribute",
        "began_ns = self._copies.computed_ns(began_ns)",
        "pass",
        "tests/gpu/test_device_time.py::test_a_device_that_computes_after_the_call_of_step_counts_as_computing",
    ),
    mutant(
        "the-host-runs-ahead-of-the-device",
        "Steps that do not contribute do not wait for the device.",
        "learn:Exchange._end_step",
        "if self._copies is not None:\n    self._copies.await_computing()",
        "pass",
        "tests/gpu/test_device_time.py::test_the_host_waits_once_per_step[local-4]",
    ),
    mutant(
        "half-precision-without-master-copies",
        "Servers keep the parameters of a model of half precision in its own dtype.",
        "tensors:held_dtype",
        "torch.float32 if masters else dtype",
        "dtype",
        "tests/gpu/test_half_precision.py::test_steps_that_half_precision_cannot_hold_are_not_lost[cpu-rounds-bfloat16]",
    ),
    mutant(
        "a-model-on-two-devices-is-attached",
        "A model on several devices fails with an error of torch.",
        "learn:check_device",
        "tensor.device != device",
        "False",
        "tests/gpu/test_device_jobs.py::test_a_model_on_two_devices_is_refused[cpu]",
    ),
)
