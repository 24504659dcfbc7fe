"""A job inside a trial of Ray Tune: every evaluation is reported to Tune while the job runs, so that a
scheduler can stop the trial.

*The job ends with the trial.* Tune ends the process of a trial that it stops within a fifth of a second,
and removes its placement group, so there is no time to save the model.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from polyrhythm.api.code import Remote
from polyrhythm.engines.engine import Wanted


class _TuneTrial:
    """Watches the job of a trial (`Remote`)."""

    def listening(self, address: str, run_dir: Path) -> None:
        pass

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """Report to Tune, and wait for its answer. Raises SystemExit if the trial must stop."""
        from ray import tune

        tune.report(dict(metrics))

    def wanted(self) -> Wanted:
        return Wanted.GO_ON


def trial_of_process() -> Remote | None:
    """What watches the job if this process runs a trial; None if it runs none."""
    if "ray.tune" not in sys.modules:
        return None
    from ray.tune.trainable import trainable_fn_utils

    # Ray has no public function for this, except one that prints a warning outside of trials
    runs_trial = getattr(trainable_fn_utils, "_in_tune_session", None)
    return _TuneTrial() if runs_trial is not None and runs_trial() else None
