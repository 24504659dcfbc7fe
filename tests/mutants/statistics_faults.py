"""Faults of kind statistics: rows, differences, and changes of a chunk's holder."""

from tests.mutants.mutant import Mutant, mutant

_ROWS = "tests/sim/test_simulated_statistics.py::test_the_sum_of_rows_is_the_memory_of_all_points"
_HELD = (
    "tests/sim/test_simulated_m_steps.py"
    "::test_m_steps_are_held_from_a_death_until_the_points_are_back"
)
_BOUNDS = (
    "tests/learn/pointwise/test_clustering.py"
    "::test_points_that_change_their_cluster_are_looked_at_again"
)

STATISTICS: tuple[Mutant, ...] = (
    mutant(
        "rounding-errors-are-points",
        "A cluster without points keeps its centre if the weights of its former points leave a rest.",
        "learn:KMeansAlgorithm.repair",
        '(statistics["points"] > 0.0).all()',
        '(statistics["count"] > 0.0).all()',
        "tests/learn/pointwise/test_clustering.py::test_a_rounding_error_is_no_point",
    ),
    mutant(
        "points-are-not-centred",
        "KMeans forgets the offset when some points are visited, and not all.",
        "learn:KMeansAlgorithm.update_points",
        "offset is not None",
        "offset is not None and dense",
        "tests/learn/pointwise/test_clustering.py"
        "::test_points_far_from_the_origin_are_fitted_like_points_near_it",
    ),
    mutant(
        "subtracted-visit-counts",
        "A contribution under two leases finishes a chunk whose points it subtracts.",
        "core:DataPlan._remembered",
        "move is not None and not move.in_flight",
        "False",
        "tests/core/lead/data/test_forgotten_points.py"
        "::test_a_contribution_under_two_leases_does_not_finish_a_chunk_that_it_subtracts",
    ),
    mutant(
        "earlier-pass-is-visited-again",
        "A report over two passes counts for neither of them if its chunk is given up.",
        "core:DataPlan._remembered",
        "(self.epochs - 1, 0)",
        "(self.chunks[index].passes, self.chunks[index].cursor)",
        "tests/core/lead/data/test_forgotten_points.py"
        "::test_a_contribution_over_two_passes_counts_up_to_the_begin_of_the_last_pass",
    ),
    mutant(
        "row-outlives-its-worker",
        "The row of a worker that has died stays in the sum.",
        "core:WorkerRows.fold",
        "{key: self.rows[key] for key in sorted(self.rows) if key in keys}",
        "{key: self.rows[key] for key in sorted(self.rows)}",
        f"{_ROWS}[0]",
    ),
    mutant(
        "difference-before-it-is-named",
        "A fold adds every difference that has arrived, and servers differ.",
        "core:WaitingContributions.take",
        "row.sequence <= last[key_of(row)]",
        "True",
        f"{_ROWS}[1]",
    ),
    mutant(
        "waiting-difference-acknowledged",
        "New routes acknowledge a difference that no fold has named, and its worker forgets it.",
        "core:Failover.place_if_ready",
        "self._mode.contained()",
        "None",
        "tests/core/server/test_server_machine.py"
        "::test_new_routes_do_not_acknowledge_a_contribution_that_no_fold_has_named",
    ),
    mutant(
        "fold-of-some-slices-acknowledged",
        "A server acknowledges differences of a slice by a fold that the slice has not made.",
        "core:RowsMode.take_over",
        "event.version < self._round",
        "False",
        "tests/core/server/test_server_machine.py"
        "::test_a_fold_that_a_slice_has_not_made_acknowledges_nothing",
    ),
    mutant(
        "torn-version-is-used",
        "The lead does not say that a contribution of a dead worker is missing in some slices.",
        "core:Contributions.torn",
        "self._torn == round_",
        "False",
        f"{_ROWS}[140]",
    ),
    mutant(
        "m-steps-without-a-dead-workers-points",
        "Parameters are computed from a sum that lacks all points of a worker that has died.",
        "core:MStepHold.decide",
        "self._was_whole or whole",
        "False",
        f"{_HELD}[400-bsp]",
    ),
    mutant(
        "m-steps-without-a-few-points",
        "Parameters are computed from a sum that lacks points that have moved.",
        "learn:MStep.on_version",
        "whole_only and not whole",
        "whole_only and counted < 0.5 * self._points",
        "tests/learn/pointwise/test_m_step.py"
        "::test_a_version_that_lacks_points_changes_no_parameters_and_has_no_objective",
    ),
    mutant(
        "objective-of-new-parameters-ends-mixtures",
        "A mixture compares the objective after two M-steps, so it ends earlier than scikit-learn's.",
        "learn:GaussianMixtureAlgorithm.terminated",
        "check.gain_before",
        "check.gain",
        "tests/learn/pointwise/test_mixture.py"
        "::test_the_result_is_scikit_learns_from_the_same_start",
    ),
    mutant(
        "entropy-without-weights",
        "The entropy of a weighted point counts once, whatever its weight.",
        "learn:shares_and_entropy",
        "spread *= weight",
        "pass",
        "tests/learn/pointwise/test_mixture.py::test_the_objective_is_that_of_equation_2",
    ),
    mutant(
        "sample-beside-all-points",
        "A sample stands for points that are in the sum themselves.",
        "learn:MStep.on_version",
        "(1.0 - counted / self._points) * self._expected",
        "self._expected",
        "tests/learn/pointwise/test_m_step.py"
        "::test_expected_statistics_stand_for_points_that_were_not_visited_yet",
    ),
    mutant(
        "sample-after-the-first-pass",
        "After the first pass, the first parameters have an effect again if points are missing.",
        "learn:MStep.on_version",
        "row[2] < self._points",
        "True",
        "tests/learn/pointwise/test_m_step.py"
        "::test_expected_statistics_are_used_in_the_first_pass_only",
    ),
    mutant(
        "points-of-the-dead-count-as-present",
        "M-steps go on although the heirs have not visited the points of a dead worker yet.",
        "core:Chunk.begin_again",
        "self.remembered = 0",
        "pass",
        f"{_HELD}[400-bsp]",
    ),
    mutant(
        "hold-without-an-end",
        "M-steps are held for ever if missing points are not visited.",
        "core:MStepHold.decide",
        "found.visited - self._since < MOST_PASSES * found.points",
        "True",
        "tests/core/lead/rounds/test_m_steps.py"
        "::test_a_hold_ends_after_two_passes_and_does_not_begin_again_without_the_points",
    ),
    mutant(
        "difference-is-sent-twice",
        "A worker sends what it has contributed again with its next contribution.",
        "core:Remembered.collect",
        "difference, self.difference = self.difference, self._zero()",
        "difference = self.difference",
        f"{_ROWS}[0]",
    ),
    mutant(
        "chunk-in-two-rows",
        "A worker that gives a chunk up does not subtract what its points have added.",
        "core:Remembered.take",
        "self.difference = self._subtract(self.difference, self._subtotals.pop(chunk))",
        "self._subtotals.pop(chunk)",
        f"{_ROWS}[3]",
    ),
    mutant(
        "rejoined-with-its-memory",
        "A worker that was evicted and joins again keeps the memory of its points.",
        "core:Remembered.take",
        "lease.incarnation != self._incarnation",
        "not self._incarnation",
        f"{_ROWS}[3]",
    ),
    mutant(
        "parameters-drift-apart",
        "A worker whose parameters differ from those of the others keeps its own.",
        "learn:MStep._take",
        "theirs < self._version or not self._rounds",
        "True",
        "tests/cluster/test_statistics_processes.py"
        "::test_parameters_that_differ_do_not_drift_apart",
        slow=True,
    ),
    mutant(
        "checked-too-soon",
        "Parameters are final although some points were not visited with them.",
        "learn:MStep._check_later",
        "1 if self._rounds and between else 2",
        "1",
        "tests/learn/pointwise/test_m_step.py"
        "::test_parameters_are_final_only_if_every_point_was_visited_with_them",
    ),
    mutant(
        "joined-within-a-generation",
        "A worker that joins compares parameters although many points were not visited since.",
        "learn:MStep._check_later",
        "self._rounds and between",
        "self._rounds",
        "tests/learn/pointwise/test_m_step.py"
        "::test_a_worker_that_joins_within_a_generation_checks_the_end_a_generation_later",
    ),
    mutant(
        "repaired-from-a-part-of-the-points",
        "The centre of a cluster whose points were not visited yet moves to other points.",
        "learn:MStep.on_version",
        "whole = counted >= self._points",
        "whole = True",
        "tests/learn/pointwise/test_m_step.py"
        "::test_a_centre_without_points_moves_only_if_every_point_is_in_the_sum",
    ),
    mutant(
        "generations-fall",
        "Visits do not count for a generation while points are missing from the sum.",
        "learn:MStep.on_version",
        "max(self._highest, generations)",
        "generations",
        "tests/learn/pointwise/test_m_step.py"
        "::test_the_generation_under_way_does_not_fall_when_points_are_missing_from_the_sum",
    ),
    mutant(
        "resumed-on-the-first-points",
        "A resumed job replaces its parameters by those of the first points that it visits.",
        "learn:MStep.on_version",
        "counted < 1 or keeps",
        "counted < 1",
        "tests/cluster/test_statistics_processes.py"
        "::test_a_resumed_job_keeps_its_parameters_until_every_point_is_in_the_sum",
        slow=True,
    ),
    mutant(
        "resumed-with-statistics",
        "A resumed job begins with the sum of its checkpoint, and its points are added again.",
        "runtime:WithoutRows.restore",
        "self._layout.slices[slice_].group != BUFFERS",
        "False",
        "tests/runtime/server/test_rows_store.py::test_a_checkpoint_has_the_parameters_and_no_rows",
    ),
    mutant(
        "ended-without-the-last-parameters",
        "The servers lack the parameters of the last version when the job reaches a goal.",
        "core:ByRounds.on_closed",
        "goal is not None and self._keeps_rows",
        "False",
        "tests/cluster/test_statistics_processes.py"
        "::test_parameters_that_differ_do_not_drift_apart",
        slow=True,
    ),
    mutant(
        "ended-while-points-move",
        "The job ends although points that move are missing from the sum.",
        "core:ByRounds._close",
        "stopping.asked and (self._state.based_on_whole or stopping.at_once)",
        "stopping.asked",
        "tests/sim/test_simulated_statistics.py"
        "::test_a_job_ends_with_the_points_that_move_at_its_end",
    ),
    mutant(
        "terminated-is-ignored",
        "The job goes on when the algorithm has found its parameters to be final.",
        "core:Counting.count",
        "report.terminated and self._evaluator.is_chosen(member)",
        "False",
        "tests/learn/test_pointwise_runner.py"
        "::test_the_job_ends_when_all_points_have_voted_to_halt",
    ),
    mutant(
        "replica-counts-what-was-not-named",
        "A replica believes that its rows contain differences that no fold has named.",
        "core:_limited",
        "min(sequence, last.get((worker, incarnation), sequence))",
        "sequence",
        "tests/runtime/server/test_rows_store.py"
        "::test_a_promoted_replica_has_the_rows_and_takes_again_what_was_not_named",
    ),
    mutant(
        "acknowledged-before-it-is-named",
        "A worker forgets a difference that no fold has named, and cannot send it again.",
        "core:Acks.on_folded",
        "of <= round_ if named is None else sequence <= named.get(worker, 0)",
        "of <= round_",
        "tests/core/server/test_server_machine.py"
        "::test_a_contribution_is_acknowledged_when_a_fold_has_named_it",
    ),
    mutant(
        "late-in-the-fold-before",
        "A contribution counts in a round whose fold does not name it, and is forgotten.",
        "core:Contributions._complete_if",
        "max(partial.round, self._named_before)",
        "partial.round",
        "tests/core/lead/rounds/test_named_folds.py"
        "::test_a_contribution_that_all_servers_had_before_the_fold_counts_in_the_next_round",
    ),
    mutant(
        "moved-memory-is-not-added",
        "The new holder of a chunk remembers its points, but does not add them to its row.",
        "learn:Chunks._read",
        "self.remembered.adopt(lease.chunk, state['subtotal'])",
        "pass",
        "tests/learn/test_pointwise_moves.py::test_a_chunk_moves_with_what_its_points_remember"
        "[algorithm0]",
    ),
    mutant(
        "bounds-of-another-worker",
        "KMeans compares the bounds of points that came from another worker with its own drift.",
        "learn:Chunks._read",
        "self._algorithm.adopt(state['memory'])",
        "state['memory']",
        "tests/learn/test_pointwise_moves.py"
        "::test_points_of_kmeans_change_their_cluster_at_a_worker_whose_centres_have_moved_less",
    ),
    mutant(
        "bounds-of-the-old-cluster",
        "With many moves, points of KMeans keep the bounds of the clusters that they have left.",
        "learn:KMeansAlgorithm.update_points",
        "found.rows + block.start if dense else at[found.rows]",
        "[]",
        f"{_BOUNDS}[False]",
    ),
    mutant(
        "bounds-of-the-first-block",
        "With many moves, KMeans forgets bounds of the first block in place of those of each block.",
        "learn:KMeansAlgorithm.update_points",
        "found.rows + block.start",
        "found.rows",
        "tests/learn/pointwise/test_clustering.py"
        "::test_a_bound_of_another_cluster_is_forgotten_in_every_block[1]",
    ),
    mutant(
        "bounds-beside-new-points",
        "In a visit with new points, points keep the bounds of the clusters that they have left.",
        "learn:KMeansAlgorithm.update_points",
        "np.where(old == found.label, bound[at], -np.inf)",
        "bound[at]",
        f"{_BOUNDS}[True]",
    ),
    mutant(
        "added-before-it-is-subtracted",
        "The new holder of a chunk adds its points while they are in the row of the old one.",
        "core:DataPlan.on_arrived",
        "self.forgets",
        "False",
        "tests/core/lead/data/test_moves.py"
        "::test_with_rows_the_holder_subtracts_when_the_points_have_arrived_and_not_before",
    ),
    mutant(
        "chunk-in-flight-is-subtracted",
        "The points of a chunk are missing from the sum while they travel.",
        "core:Remembered.take",
        "{chunk.chunk for chunk in lease.chunks} | {send.chunk for send in lease.sends}",
        "{chunk.chunk for chunk in lease.chunks}",
        "tests/learn/test_pointwise_moves.py::test_a_chunk_moves_with_what_its_points_remember"
        "[algorithm1]",
    ),
    mutant(
        "passes-of-the-next-version-count",
        "A job ends although the last visits of some points are in no version yet.",
        "core:ByRounds.on_closed",
        "self._plan.folded_passes",
        "self._plan.passes",
        "tests/sim/test_last_contributions.py"
        "::test_the_last_parameters_are_computed_from_all_points[20]",
    ),
    mutant(
        "points-are-shared-anew-after-the-goal",
        "A worker joins when a job has reached its goal, and the others forget points for it.",
        "core:Leasing.share_again",
        "(gone or not ends)",
        "True",
        "tests/core/lead/data/test_dealing.py"
        "::test_a_worker_that_joins_gets_chunks_of_the_others_unless_the_job_ends",
    ),
    mutant(
        "points-are-lost-after-the-goal",
        "A worker dies after the goal while chunks move, and the final sum lacks its points.",
        "core:ByRounds.on_closed",
        "self._state.whole and self._progress.goals.holds(self._stopping.goal)",
        "self._state.whole",
        "tests/sim/test_simulated_statistics.py"
        "::test_points_of_a_worker_that_dies_while_moves_end_are_visited_again[732]",
    ),
    mutant(
        "last-visits-are-not-repeated",
        "Points of a worker that died after their last visits are missing from the final sum.",
        "core:Chunk.begin_again",
        "self.passes >= epochs - 1",
        "self.passes == epochs - 1",
        "tests/sim/test_simulated_statistics.py"
        "::test_points_of_a_worker_that_dies_in_the_last_pass_are_visited_again[180-bsp]",
    ),
    mutant(
        "forgotten-chunk-counts-as-finished",
        "A worker gets a chunk again while its last visits are in flight, but has forgotten them.",
        "core:DataPlan._keep",
        "self.forgets and move is not None and move.points_there",
        "False",
        "tests/core/lead/data/test_forgotten_points.py"
        "::test_a_chunk_stays_with_a_holder_that_was_asked_to_give_it_up[the heir dies]",
    ),
    mutant(
        "remembered-points-are-visited-again",
        "A chunk begins its last pass again, although its memory has travelled with it.",
        "core:DataPlan._complete",
        "self.hand(move.chunk, move.target, remembered=move.phase is MovePhase.ARRIVED)",
        "self.hand(move.chunk, move.target, remembered=False)",
        "tests/sim/test_simulated_migration.py::test_every_pass_visits_every_point_once[71]",
    ),
    mutant(
        "finished-chunk-begins-again",
        "A worker visits a chunk again that it has finished, because a lease was sent before its"
        " contribution arrived.",
        "core:position",
        "max(own, leased)",
        "leased",
        "tests/core/worker/test_positions.py"
        "::test_a_worker_that_knows_the_points_continues_where_it_has_been",
    ),
    mutant(
        "moved-blocks-are-in-order",
        "A chunk moves within a pass. What one block has added counts for another one.",
        "learn:LeasedChunk.of_state",
        'zip(state["at"].tolist(), state["last"], strict=True)',
        'enumerate(state["last"])',
        "tests/learn/test_pointwise_chunks.py"
        "::test_a_chunk_that_moves_within_a_pass_knows_what_each_block_has_added",
    ),
    mutant(
        "locked-chunk-outlives-its-incarnation",
        "A worker that joins again takes a chunk that was to move as one that is in its new row.",
        "learn:Chunks.take",
        "self._chunks.clear()\nself._locked.clear()",
        "self._chunks.clear()",
        "tests/learn/test_pointwise_chunks.py"
        "::test_a_worker_that_joins_again_forgets_what_it_was_about_to_give_up",
    ),
    mutant(
        "votes-of-visited-points-are-enough",
        "A job ends when all points visited so far have voted to halt, though others are left.",
        "learn:MStep.on_version",
        "row[1] >= self._points",
        "row[1] >= counted",
        "tests/learn/pointwise/test_m_step.py"
        "::test_votes_to_halt_end_the_job_only_if_every_point_has_voted",
    ),
)
