"""Mutants of the code that moves points from worker to worker."""

from tests.mutants.mutant import Mutant, mutant

_MOVES = "tests/core/lead/data/test_moves.py"
_PASS_END = "tests/core/lead/data/balance/test_finish_pass.py"
_SHARED = "tests/core/lead/data/test_shared_private.py"
_COMMIT = f"{_MOVES}::test_a_move_is_complete_when_points_have_arrived_and_the_holder_has_confirmed"

MIGRATION: tuple[Mutant, ...] = (
    mutant(
        "move-commits-before-its-points-have-arrived",
        "A migration is committed before the target has the data.",
        "core:DataPlan.on_confirmed",
        "move.points_there",
        "True",
        f"{_COMMIT}[True]",
    ),
    mutant(
        "move-commits-before-its-source-has-confirmed",
        "A migration is committed while a contribution with points of the chunk may be in flight.",
        "core:DataPlan.on_arrived",
        "move.phase is MovePhase.GIVEN_UP",
        "True",
        f"{_COMMIT}[False]",
    ),
    mutant(
        "window-is-not-locked",
        "A chunk in flight stays in the lease of its holder, which visits it.",
        "core:DataPlan.held_by",
        "self.moving(index) is None",
        "True",
        f"{_COMMIT}[True]",
    ),
    mutant(
        "inactive-copy-is-visited",
        "A worker goes on visiting a chunk that it gave away.",
        "core:DataPlan.hand",
        "self.held[chunk.holder].discard(index)",
        "pass",
        f"{_MOVES}::test_a_chunk_comes_back_without_its_points",
    ),
    mutant(
        "priority-never-ends",
        "A moved chunk never makes up for its missing passes, so it is always visited first.",
        "learn:Points._advance",
        "passes, cursor = passes + 1, 0",
        "passes, cursor = passes + (passes == max(self._positions.values())[0]), 0",
        "tests/learn/migration/test_priority.py"
        "::test_a_moved_chunk_comes_first_until_its_missing_passes_are_made_up[1]",
    ),
    mutant(
        "chunk-has-to-come-back",
        "A chunk moves for the end of this pass, and has to come back in the next one.",
        "core:_chunks_for_pass",
        "uneven_s(next_s - 2 * moved_s)",
        "uneven_s(apart_s - moved_s)",
        f"{_PASS_END}::test_nothing_moves_if_the_chunk_would_have_to_come_back",
    ),
    mutant(
        "move-that-gains-nothing",
        "A chunk moves between equal workers, although visits differ by two as long as before.",
        "core:_chunks_for_pass",
        "uneven + count * _LEAST_GAIN * round_s",
        "uneven - count * _LEAST_GAIN * round_s",
        f"{_PASS_END}::test_a_move_must_shorten_the_time_in_which_visits_differ_by_half_a_round",
    ),
    mutant(
        "dead-source-gives-points-that-have-not-arrived",
        "A chunk of a dead source goes to a target that does not have its points.",
        "core:DataPlan.release",
        "move.target if move.points_there else None",
        "move.target",
        f"{_MOVES}::test_chunks_of_a_dead_source_go_to_the_target_only_if_their_points_have_arrived",
    ),
    mutant(
        "points-before-the-first-lease-are-dropped",
        "A worker that has joined again drops points that came before its first lease.",
        "core:Migration.lease",
        "self._state.deliveries if receiver is None else receiver.earlier",
        "self._state.deliveries",
        f"{_MOVES}::test_a_lease_names_the_deliveries_to_earlier_incarnations_of_its_worker",
    ),
    mutant(
        "late-delivery-counts",
        "A report of a delivery that was given up completes a later one.",
        "core:Migration.on_arrived",
        "move is None or move.delivery != number or move.target != sender",
        "move is None or move.target != sender",
        f"{_MOVES}::test_a_change_of_the_view_ends_all_moves_and_late_points_are_ignored",
    ),
    mutant(
        "active-copy-is-dropped",
        "A copy that is about to become active is dropped.",
        "core:InactiveCopies.keep",
        "plan.due(index) != source",
        "True",
        f"{_MOVES}::test_a_copy_that_becomes_active_again_is_not_dropped",
    ),
    mutant(
        "old-points-are-sent-on",
        "Points are sent on although their owner is back with other points, and shares nothing.",
        "core:PrivateData.enrol",
        "each.shares and each.name != name",
        "each.shares",
        f"{_SHARED}::test_moves_of_old_points_end_if_their_owner_does_not_share_its_new_points",
    ),
    mutant(
        "copies-outlive-permission",
        "A worker keeps a copy of points that their owner does not share any more.",
        "core:InactiveCopies.keep",
        "not may_return or plan.ownership.reads(source, chunk)",
        "plan.ownership.reads(source, chunk)",
        f"{_SHARED}::test_members_drop_copies_of_points_that_are_not_shared_any_more",
    ),
    mutant(
        "fast-workers-end-the-passes-of-slow-ones",
        "Passes do not wait for a worker of round 1 that has not announced its private points yet.",
        "core:Enrolment.on_opened",
        "m.entered and not m.enrolled",
        "False",
        "tests/core/test_without_rounds.py::test_a_fast_worker_with_private_data_does_not_reach_the_goal"
        "_before_a_slow_one_has_announced_its[True]",
    ),
    mutant(
        "the-goal-is-not-checked-when-passes-stop-waiting",
        "The lead stops waiting for private data, and does not notice that the passes are over.",
        "core:Leasing.on_time",
        "self._mode.on_counted(now_ns)",
        "pass",
        "tests/core/test_without_rounds.py::test_a_fast_worker_with_private_data_does_not_reach_the_goal"
        "_before_a_slow_one_has_announced_its[False]",
    ),
    mutant(
        "old-private-points-are-visited",
        "Workers visit old points of an owner that has come back with others and shares no more.",
        "core:Enrolment._enrol_private",
        "private.drop_unshared(member.key)",
        "pass",
        "tests/sim/test_simulated_sharing.py"
        "::test_old_points_are_dropped_when_their_owner_comes_back_with_others_and_shares_no_more",
    ),
    mutant(
        "private-chunk-leaves-without-permission",
        "The lead moves a chunk of a worker that was started without --share-data.",
        "core:PrivateData.may_move",
        "found.shares and (not sent or (sender is not None and sender.shares))",
        "True",
        f"{_SHARED}::test_a_private_chunk_stays_if_its_owner_does_not_share_it",
    ),
    mutant(
        "worker-sends-private-points-that-it-does-not-share",
        "A worker trusts the lead, and sends points although it was started without --share-data.",
        "core:refusal",
        "private and not shares",
        "False",
        "tests/runtime/worker/test_deliveries.py"
        "::test_points_of_private_data_leave_a_worker_only_if_it_shares_them[False]",
    ),
    mutant(
        "chunk-on-its-way-back-is-dropped",
        "A worker drops the points of a chunk before its owner has it back.",
        "core:Migration.lease",
        "not plan.forgets",
        "False",
        f"{_SHARED}::test_a_chunk_that_goes_back_is_kept_until_its_owner_has_it",
    ),
    mutant(
        "passes-of-a-returned-chunk-are-left-out",
        "When the holder of a chunk dies, its owner skips the passes that the holder owes.",
        "core:PrivateData.on_released",
        "self._lend(found, passes)",
        "self._lend(found, self.passes)",
        f"{_SHARED}"
        "::test_a_chunk_goes_back_to_its_owner_when_its_holder_is_gone_and_no_pass_is_left_out",
    ),
)
