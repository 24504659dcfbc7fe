"""Faults of local training: the outer optimizer and the weights of a round."""

from tests.mutants.mutant import Mutant, mutant

OUTER: tuple[Mutant, ...] = (
    mutant(
        "outer-at-the-workers-rate",
        "The outer step is scaled by the learning rate of the workers' own optimizer.",
        "core:Stepping.step",
        "self._outer_rate is not None",
        "False",
        "tests/core/server/test_stepping.py::test_an_outer_step_has_the_rate_of_the_outer_optimizer",
    ),
    mutant(
        "outer-away-from-the-average",
        "The averaged change is used as a gradient: the model moves away from the workers'.",
        "core:_as_in_torch",
        "{**found, 'maximize': True}",
        "found",
        "tests/tensors/test_outer_updater.py::test_a_fold_is_a_step_of_plain_torch_against_the_averaged_change[nesterov]",
    ),
    mutant(
        "outer-skips-unchanged-parameters",
        "A parameter whose averaged change is -0.0 does not move on with its momentum.",
        "tensors:Outer.__init__",
        "self._absences = Absences(())",
        "pass",
        "tests/tensors/test_outer_updater.py::test_a_parameter_that_no_worker_changes_moves_on_with_its_momentum",
    ),
    mutant(
        "outer-state-is-not-taken-over",
        "A slice that moves to another server, or comes from a checkpoint, loses its momentum.",
        "tensors:Optimizer.adopt",
        "mine[key] = value",
        "pass",
        "tests/cluster/test_outer_state.py::test_a_job_that_is_killed_continues_with_the_outer_optimizer",
        slow=True,
    ),
    mutant(
        "weights-are-always-points",
        "With --weights workers, contributions with more points still count more.",
        "core:weight_in_round",
        "1.0 if weights == BY_WORKERS else points",
        "points",
        "tests/core/worker/test_pushes.py::test_servers_get_the_weight_and_the_lead_gets_the_points",
    ),
    mutant(
        "decoupled-decay-in-the-first-moment",
        "Without rounds, the weight decay of AdamW is part of its momentum.",
        "tensors:_add",
        "group['weight_decay'] and not group.get('decoupled_weight_decay')",
        "group['weight_decay']",
        "tests/tensors/test_momentum.py"
        "::test_only_coupled_weight_decay_is_part_of_the_first_moment",
    ),
)
