"""Workers that fail for the same reason share one line."""

from polyrhythm.engines.notices import failure_lines


def test_a_reason_that_begins_with_the_name_is_shared() -> None:
    reasons = {
        "worker-0": "worker-0, step 1: the gradient of 'weight' holds NaN or infinity",
        "worker-1": "worker-1, step 1: the gradient of 'weight' holds NaN or infinity",
        "worker-2": "killed by SIGKILL",
    }
    assert failure_lines(reasons) == [
        "worker-0, worker-1 failed: step 1: the gradient of 'weight' holds NaN or infinity",
        "worker-2 failed: killed by SIGKILL",
    ]
