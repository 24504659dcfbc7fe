"""Faults in how slices move between servers: each loses a part of a slice, or sends something twice."""

from tests.mutants.mutant import Mutant, mutant

_MOVES = "tests/sim/test_moves.py"
_STORM = "tests/sim/test_moving_ledger.py::test_the_books_balance_though_slices_move"
_FOLDS = "tests/core/lead/rounds/test_during_folds.py"
_SHARING = "tests/core/lead/rounds/test_sharing.py"

MOVING: tuple[Mutant, ...] = (
    mutant(
        "parameters-left-behind",
        "With the optimizer on workers, a slice leaves the only server that has its parameters.",
        "core:Sharing.only_on_servers",
        "shared and not self._able()",
        "False",
        f"{_SHARING}::test_no_slice_moves_away_from_parameters_that_only_servers_have",
    ),
    mutant(
        "parameters-asked-of-a-worker-that-hangs",
        "When a stop does not wait for a worker that hangs, this worker is asked for the parameters.",
        "core:Rounds.awaits",
        "worker in self._order",
        "True",
        "tests/sim/test_steps_on_workers.py"
        "::test_the_model_is_saved_though_a_worker_hangs_when_the_job_is_stopped",
    ),
    mutant(
        "lost-parameters-not-noticed",
        "The lead waits for parameters that nobody has any more.",
        "core:Lifecycle.end_if_lost",
        "not self._ending.begun",
        "False",
        f"{_SHARING}::test_the_job_ends_when_its_workers_die_during_a_fold",
        f"{_SHARING}::test_the_job_ends_when_the_only_servers_that_had_the_parameters_are_replaced",
    ),
    mutant(
        "source-dropped-before-promotion",
        "A server that is drained leaves while it still has slices.",
        "core:RoutingTable.drained",
        "self.roster.draining - self._holders",
        "self.roster.draining",
        f"{_MOVES}::test_with_rounds_no_contribution_is_sent_twice",
    ),
    mutant(
        "promoted-before-it-has-caught-up",
        "A learner becomes the primary before it has the state of the slice.",
        "core:_promote",
        "now.learners or not set(target.holders) <= set(now.holders)",
        "not set(target.holders) <= set(now.holders)",
        f"{_MOVES}::test_with_rounds_no_contribution_is_sent_twice",
        "tests/properties/test_failover.py"
        "::test_every_slice_has_a_living_primary_or_is_reported_as_lost",
    ),
    mutant(
        "rows-left-behind",
        "A slice moves without the contributions that it contains.",
        "core:HeldSlices.teach",
        "held.folded_rows",
        "()",
        "tests/core/server/test_slices.py"
        "::test_a_state_brings_the_contributions_that_its_slice_contains",
    ),
    mutant(
        "steps-without-replicas-not-counted",
        "Without replicas a primary does not send its steps to the server that takes a slice over.",
        "core:HeldSlices.sent_on",
        "[slice_ for slice_ in slices if self._held[slice_].copy_targets]",
        "[]",
        f"{_STORM}[0]",
        f"{_MOVES}::test_with_rounds_no_contribution_is_sent_twice",
    ),
    mutant(
        "secured-contributions-sent-again",
        "A worker that still receives a version sends the slices that have moved a second time.",
        "core:Outstanding.secure",
        "sent.sequence > sequence",
        "True",
        f"{_MOVES}::test_with_rounds_no_contribution_is_sent_twice",
    ),
    mutant(
        "routes-of-a-fold-name-the-fold-before",
        "A slice that gets its new primary in a fold receives the contributions of this fold again.",
        "core:Rounds.folded",
        "self._folding is None or self._kept_open",
        "self._folding is None",
        f"{_FOLDS}::test_the_routes_of_a_move_in_a_fold_name_the_contributions_of_this_fold",
    ),
    mutant(
        "a-fold-that-moved-slices-stays-open",
        "After a fold with moves, contributions of the fold under way count as folded.",
        "core:Rounds._close_if",
        "self._folding, self._kept_open = None, False",
        "self._folding = None",
        f"{_FOLDS}::test_the_routes_of_a_move_in_a_fold_name_the_contributions_of_this_fold",
    ),
    mutant(
        "answers-for-slices-that-came-later",
        "A server that has answered a fold does not fold a slice whose primary it becomes then.",
        "core:Rounds.reroute",
        "self._folding = set(folded)",
        "self._folding |= folded",
        f"{_FOLDS}::test_a_server_that_gets_a_slice_without_this_fold_must_fold_again",
    ),
    mutant(
        "folds-end-while-slices-change-hands",
        "A fold counts as complete although a lost server's slices were not folded.",
        "core:ByRounds.on_folded",
        "not moving and self._rounds.on_folded(message, self._routing.primaries)",
        "self._rounds.on_folded(message, self._routing.primaries)",
        f"{_FOLDS}::test_a_fold_is_not_over_while_slices_of_a_lost_server_change_hands",
    ),
    mutant(
        "folds-repeated-without-lost-contributions",
        "A slice that a server takes over is folded before a lost contribution was sent again.",
        "core:ByRounds.recount",
        "not self._contributions.owed",
        "True",
        f"{_FOLDS}::test_a_fold_is_not_repeated_before_a_lost_contribution_was_sent_again",
    ),
    mutant(
        "promoted-between-folds",
        "With rounds slices get new primaries while contributions are on their way.",
        "core:LeadMachine._advance_between_folds",
        "not in_folds",
        "True",
        f"{_MOVES}::test_with_rounds_no_contribution_is_sent_twice",
    ),
    mutant(
        "optimizer-state-left-behind",
        "A slice moves without the state of its optimizer.",
        "runtime:export_state",
        "{PARAMETERS: held.parameters, **updater.export(held)}",
        "{PARAMETERS: held.parameters}",
        "tests/cluster/test_moving_servers.py"
        "::test_all_servers_but_the_leads_are_replaced_without_replicas[asp-momentum]",
        slow=True,
    ),
    mutant(
        "asked-readers-forgotten-without-replicas",
        "A contribution ends the lease of a version that a worker has asked for a second time.",
        "core:Leases.on_rerouted",
        "not self._rerouted",
        "False",
        "tests/core/server/test_leases.py::test_after_new_routes_a_reader_that_asked_names_its_version",
    ),
    mutant(
        "joined-server-counts-as-a-first-one",
        "A job that resumes after the death of a server that joined later runs with one server less.",
        "core:Resuming.decide",
        "loss.servers if joined else max(1, loss.servers)",
        "max(1, loss.servers)",
        "tests/core/test_resuming.py"
        "::test_the_death_of_a_server_that_joined_later_leaves_all_first_servers",
    ),
)
