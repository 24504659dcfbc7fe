"""Faults in the decisions of `core`: each breaks a rule by which no contribution is lost or added
twice."""

from tests.mutants.mutant import Change, Mutant, mutant

STORM = "tests/sim/test_server_ledger.py::test_the_books_balance_though_servers_die"

CORE: tuple[Mutant, ...] = (
    mutant(
        "bytes-behind-a-heartbeat-are-silence",
        "A worker whose heartbeats wait behind its slices on a slow link is evicted.",
        "core:LeadMachine._on_peers_heard",
        "self._lifecycle.suspicion.hear(worker, now_ns)",
        "pass",
        "tests/core/lead/members/test_eviction.py::test_bytes_of_a_worker_are_a_sign_of_life_though_its_heartbeats_wait_behind_them",
    ),
    mutant(
        "sum-of-a-lost-server-is-kept",
        "A worker makes a step with a sum that a server has sent before the fold, and that died.",
        "core:Assembly.drop_early",
        "stays[slice_]",
        "True",
        "tests/core/worker/test_early_sums.py::test_sums_of_a_lost_server_are_dropped",
    ),
    mutant(
        "sum-of-a-slice-whose-server-came-back",
        "A worker keeps the sum of a server that was lost, because a later server has its number.",
        "core:Assembly.drop_early",
        "_primary_of(now) == _primary_of(before)",
        "now.primary == before.primary",
        "tests/core/worker/test_early_sums.py"
        "::test_after_several_changes_of_routes_a_sum_counts_if_its_primary_has_stayed",
    ),
    mutant(
        "sum-of-the-wrong-round",
        "A server dies in the middle of a fold, and its heir sends sums of that fold for the next.",
        "core:RoundsSlices.sum_of",
        "self._held[slice_].stamp.number + 1",
        "self.round",
        "tests/sim/test_steps_on_workers.py::test_a_server_dies_in_the_middle_of_a_fold",
    ),
    mutant(
        "sums-lost-with-a-link",
        "A worker waits for ever for sums that were lost with a link to a server that is still there.",
        "core:Entry._lacks_sums",
        "server is None or state.phase is not Phase.WAITING",
        "True",
        "tests/sim/test_steps_on_workers.py"
        "::test_a_link_breaks_while_sums_are_on_their_way_and_another_server_is_lost[296]",
    ),
    mutant(
        "sum-comes-after-its-primary",
        "A worker takes the sum of a server that was lost before the sum arrived.",
        "core:Assembly.land_early",
        "self.early_since[slice_] > routing",
        "False",
        "tests/core/worker/test_early_sums.py"
        "::test_a_sum_that_comes_after_the_new_routes_is_dropped",
    ),
    mutant(
        "sum-of-a-slice-that-moved-is-dropped",
        "A slice moves after the fold while its sum is on its way: the worker waits for it for ever.",
        "core:Assembly.land_early",
        "self.early_since[slice_] > routing",
        "self.routes[slice_].since > routing",
        "tests/core/worker/test_early_sums.py"
        "::test_a_sum_that_comes_after_its_slice_has_moved_counts",
    ),
    mutant(
        "sum-without-a-member",
        "A server sends a sum before the fold that lacks the contribution of a member.",
        "core:RoundsSlice.has_all",
        "row[0] != incarnation or row == folded.get(worker)",
        "row[0] != incarnation",
        "tests/core/server/test_early_sums.py"
        "::test_a_sum_is_complete_when_every_member_of_the_view_is_in_it",
    ),
    mutant(
        "newcomer-makes-a-step-without-the-version-before",
        "A worker that joins gets the sum of a round instead of parameters and state.",
        "core:Sharing.lacks",
        "state.members[key] is Has.READS",
        "False",
        "tests/sim/test_steps_on_workers.py"
        "::test_the_same_points_are_visited_as_with_the_optimizer_on_servers",
    ),
    mutant(
        "no-dedupe",
        "A contribution that is sent again is added again.",
        "core:HeldSlices.judge",
        "row is not None and row[0] == incarnation and message.sequence <= row[1]",
        "False",
        "tests/core/server/test_slices.py::test_every_slice_is_added_exactly_once",
        STORM,
    ),
    mutant(
        "acknowledged-before-it-is-copied",
        "A primary acknowledges before its replicas have confirmed.",
        "core:Replication.issue",
        "lacking & (self.replicas | self._adopted)",
        "set()",
        STORM,
        slow=True,
    ),
    mutant(
        "idle-before-the-goal-is-checked",
        "Without rounds, a job fails in which all points that were not visited are lost.",
        "core:ByArrival.end_if_idle",
        "goal is not None",
        "False",
        "tests/core/test_without_rounds.py"
        "::test_the_goal_is_reached_when_the_points_that_are_missing_are_lost_with_their_worker",
    ),
    mutant(
        "last-worker-does-not-say-that-it-rejoins",
        "A job ends when its last worker has lost its link to a server, and is about to rejoin.",
        "core:Departure.rejoin",
        "m.Leave(**state.outbox.identity(), reason=reason, rejoins=True)",
        "m.Leave(**state.outbox.identity(), reason=reason)",
        "tests/sim/test_worker_faults.py"
        "::test_the_only_worker_rejoins_after_its_link_to_a_server_was_cut[bsp-100]",
    ),
    mutant(
        "every-silence-is-the-links-fault",
        "A worker that hangs is excluded because of its links, before its own silence is too long.",
        "core:BrokenLinks.on_silent",
        "heard_ns < (since_ns + now_ns) // 2",
        "False",
        "tests/core/lead/servers/test_broken_links.py"
        "::test_a_worker_that_hangs_while_it_begins_is_not_cut_off",
    ),
    mutant(
        "half-of-the-workers-are-most",
        "A server is lost because half of the workers cannot reach it.",
        "core:judge",
        "2 * len(cut) > workers",
        "2 * len(cut) >= workers",
        "tests/core/lead/servers/test_broken_links.py::test_which_process_must_go",
    ),
    mutant(
        "a-pause-is-silence",
        "A server that was paused reports links over which nothing came meanwhile.",
        "core:QuietLinks.look",
        "now_ns - self._looked_ns > self._pause_ns",
        "False",
        "tests/core/server/test_quiet_links.py"
        "::test_time_in_which_the_server_was_paused_is_not_silence",
    ),
    mutant(
        "cut-off-at-the-end",
        "A worker whose link falls silent when the goal is reached holds up the end of the job.",
        "core:LeadMachine._on_silent_link",
        "self._ending.decided",
        "self._ending.begun",
        "tests/core/lead/servers/test_broken_links.py"
        "::test_a_worker_that_is_cut_off_from_its_final_version_is_excluded_too",
    ),
    mutant(
        "replicas-accept-any-sender",
        "A replica makes the steps of a server that is not its primary any more.",
        "core:HeldSlices.judge_step",
        "held is None or not held.is_copied_from(copy.server)",
        "held is None",
        "tests/core/server/test_slices.py::test_a_replica_ignores_steps_of_a_former_primary",
    ),
    mutant(
        "state-of-a-former-primary-is-current",
        "A copy counts as current though its primary changed while the state was written.",
        "core:HeldSlices.on_adopted",
        "self.judge_state(state) is Verdict.NEW",
        "True",
        "tests/core/server/test_slices.py"
        "::test_a_state_is_not_current_if_the_slice_gets_another_primary_while_it_is_written",
    ),
    mutant(
        "state-of-an-earlier-request-is-taken",
        "A state counts that was asked for before the slice had another primary, and then the same"
        " one again.",
        "core:HeldSlices.judge_state",
        "state.routing >= held.copied_since",
        "True",
        "tests/core/server/test_slices.py"
        "::test_a_state_is_not_current_if_the_slice_gets_another_primary_while_it_is_written",
    ),
    mutant(
        "step-of-a-former-primary-is-not-recorded",
        "A step that is made while the slice gets another primary is missing from its stamp.",
        "core:HeldSlices.on_copied",
        "verdict is Verdict.NEW",
        "self.judge_step(copy) is Verdict.NEW",
        "tests/core/server/test_slices.py"
        "::test_a_step_is_recorded_though_the_slice_gets_another_primary_while_it_is_made",
    ),
    mutant(
        "copies-move-without-a-lock",
        "A slice that a server begins or ceases to copy is not locked while its memory changes.",
        "core:HeldSlices.role_changes",
        "sorted({*coming, *going, *set(copies).symmetric_difference(self.copies)})",
        "sorted({*coming, *going})",
        "tests/core/server/test_slices.py::test_only_slices_whose_role_changes_are_locked",
    ),
    mutant(
        "simulated-replica-folds-twice",
        "A replica of the simulator folds every contribution twice.",
        "sim:SimSliceStore._copy_slice",
        "list(message.cargo)",
        "list(message.cargo) * 2",
        STORM,
    ),
    Mutant(
        "stale-acknowledgements-count",
        "An acknowledgement counts for slices that its server became the primary of later.",
        (
            Change("core:Outstanding.acknowledge", "max(parts) > routing", "False"),
            Change("core:Pushes.acknowledge", "routing > self._outbox.routing", "False"),
        ),
        (STORM,),
        slow=True,
    ),
    mutant(
        "everything-is-sent-again",
        "After a change of routes a worker sends slices again that stayed where they were.",
        "core:Outstanding.reroute",
        "(route.primary, route.since) != owed or route.primary in relinked",
        "True",
        STORM,
    ),
    mutant(
        "learner-counts-at-once",
        "A learner counts as a replica before it has every step that was made meanwhile.",
        "core:Replication.caught_up",
        "peer in self._adopted and not self._followed.get(peer)",
        "True",
        STORM,
    ),
    mutant(
        "promoted-server-keeps-what-it-acknowledged",
        "A server that takes over slices believes that they hold all that it has acknowledged.",
        "core:Acks.on_slices_changed",
        "least if had_none else min(before, least)",
        "before",
        "tests/core/server/test_acks.py::test_a_promoted_server_has_acknowledged_what_all_its_slices_have",
    ),
    mutant(
        "rows-stay-behind",
        "A server that adopts a slice's state does not learn which contributions are in it.",
        "core:HeldSlices.on_adopted",
        "held.follow(state.stamp, state.rows)",
        "held.follow(state.stamp, ())",
        STORM,
        slow=True,
    ),
    mutant(
        "reports-outlive-their-epoch",
        "A contribution counts by a report that its server gave before it held other slices.",
        "core:_Partial.lacks",
        "reports.get(server, -1) < since",
        "server not in reports",
        STORM,
        slow=True,
    ),
    mutant(
        "leases-end-when-slices-move",
        "A change of routes ends the leases of slices that stay where they are.",
        "core:Versions.move",
        "self._earlier.setdefault((reader, leased), []).append(slot)",
        "_drop(self._readers, slot)",
        "tests/core/server/test_leases.py::test_a_slot_stays_leased_when_slices_move",
    ),
    mutant(
        "contributions-end-later-leases",
        "A contribution ends the lease of a version that is still being sent to its worker.",
        "core:Versions.on_contributed",
        "lease[0] < version + here",
        "True",
        "tests/core/server/test_leases.py"
        "::test_a_contribution_from_an_earlier_version_ends_no_lease[False]",
    ),
    mutant(
        "next-lease-ends-a-lease-that-is-read",
        "A new version ends the lease of the one before, although that is still being sent.",
        "core:Versions.lease",
        "self._earlier.setdefault((reader, before[0]), []).append(before[1])",
        "_drop(self._readers, before[1])",
        "tests/core/server/test_leases.py"
        "::test_a_contribution_from_an_earlier_version_ends_no_lease[False]",
    ),
    mutant(
        "lost-with-a-cut-link",
        "Contributions in flight over a link that was cut are not sent again.",
        "core:Outstanding.reroute",
        "route.primary in relinked",
        "False",
        "tests/sim/test_server_ledger.py"
        "::test_contributions_in_flight_over_a_cut_link_are_sent_again",
    ),
    Mutant(
        "folds-write-what-is-read",
        "A fold writes on a version that a reader has leased.",
        (
            Change("core:Versions.leased", "slot in self._readers", "False"),
            Change("core:SliceVersions.target", "not self._readers[slice_, slot]", "True"),
        ),
        (STORM,),
        slow=True,
    ),
    mutant(
        "counted-when-sent",
        "A contribution counts when its trailer comes, whatever the servers report.",
        "core:Contributions._complete_if",
        "if trailer is None or len(reports) < len(primary_since):\n"
        "    return None\n"
        "for server, since in primary_since.items():\n"
        "    if reports.get(server, -1) < since:\n"
        "        return None",
        "if trailer is None:\n    return None",
        STORM,
        slow=True,
    ),
    mutant(
        "joiner-begins-at-zero",
        "A worker that joins later begins with clock 0, and holds the others back.",
        "core:Clocks.enter",
        "self._floor",
        "0",
        "tests/properties/test_staleness.py::test_a_joiner_starts_at_the_members_minimum",
    ),
    mutant(
        "contribution-frees-a-version-that-is-still-read",
        "A contribution is said to be computed from the version that the worker reads next.",
        "core:HeldSlices.add",
        "message.round - 1",
        "message.round",
        "tests/core/server/test_slices.py"
        "::test_a_contribution_counts_in_the_round_of_its_last_slice_and_names_the_version_it_read",
    ),
    mutant(
        "job-waits-for-a-worker-that-hangs",
        "A worker that hangs keeps the job from ending after its time limit.",
        "core:TimeLimit.overdue",
        "return self.deadline.is_over(now_ns)",
        "return False",
        "tests/core/lead/progress/test_time_limit.py"
        "::test_an_open_round_is_broken_off_without_the_worker_that_hangs",
    ),
    mutant(
        "acknowledgement-skips-a-contribution",
        "An acknowledgement of two contributions covers only the first: the worker waits for ever.",
        "core:Outstanding.acknowledge",
        "self.sent[:] if len(self.sent) > 1 else self.sent",
        "self.sent",
        "tests/core/worker/test_pushes.py"
        "::test_one_acknowledgement_covers_all_contributions_before_it",
    ),
    mutant(
        "last-row-of-a-server-is-forgotten",
        "A contribution stays incomplete if servers named it only when they followed new routes.",
        "core:Contributions._begin",
        "last.get(key[:2], 0) >= key[2]",
        "last.get(key[:2], 0) > key[2]",
        "tests/core/lead/rounds/test_during_folds.py"
        "::test_a_server_may_name_a_contribution_before_anything_else_is_heard_of_it",
    ),
    mutant(
        "orders-of-an-earlier-lead-are-followed",
        "A process follows the orders of a lead whose term is over.",
        "core:Seat.outranks",
        "message.term < self.term",
        "False",
        "tests/core/test_seat.py::test_a_server_ignores_the_orders_of_an_earlier_lead[1]",
    ),
    mutant(
        "messages-go-to-the-first-lead",
        "A process sends messages for the lead to the first server, after the seat has moved too.",
        "core:Seat.process_of",
        "server_name(self.server) if name == LEAD else name",
        "server_name(0) if name == LEAD else name",
        "tests/runtime/test_moving_seat.py::test_reports_of_a_running_server_follow_the_seat",
    ),
    mutant(
        "second-view-hides-the-first-removal",
        "Points of a member stay lost because another member left before all servers knew.",
        "core:Removals.on_view_sent",
        "self._telling |= self._leaving",
        "self._telling = self._leaving",
        "tests/core/lead/members/test_removals.py::test_removals_of_several_views_are_confirmed_together",
    ),
    mutant(
        "a-pause-ends-a-silence",
        "A silent link is forgotten when the lead was paused.",
        "core:BrokenLinks.exclude_time",
        "link.reported_ns += paused_ns",
        "pass",
        "tests/core/lead/servers/test_broken_links.py::test_a_pause_of_the_lead_is_not_the_end_of_a_silence",
    ),
    mutant(
        "restored-lead-forgets-the-evaluator",
        "A lead that was restored from its state chooses another evaluator.",
        "core:connect",
        "Evaluator(state.evaluator, view, outbox)",
        "Evaluator(Chosen(), view, outbox)",
        "tests/sim/test_lead_snapshot.py"
        "::test_a_lead_that_is_restored_after_every_event_does_the_same[0]",
    ),
    mutant(
        "restored-lead-forgets-moves",
        "A lead that was restored from its state forgets which deliveries of points are under way.",
        "core:connect",
        "Migration(state.migration, plan, choice, job.migrate_memory)",
        "Migration(MigrationState(), plan, choice, job.migrate_memory)",
        "tests/sim/test_lead_snapshot.py"
        "::test_a_lead_that_is_restored_after_every_event_does_the_same[4]",
    ),
    mutant(
        "restored-lead-forgets-the-best-value",
        "A lead that was restored from its state keeps a model that is worse than an earlier one.",
        "core:connect",
        "KeepBest(state.best, job, routing, rounds, outbox, sharing)",
        "KeepBest(begin_state(job).best, job, routing, rounds, outbox, sharing)",
        "tests/core/lead/test_keep_best.py::test_only_a_better_report_is_kept[True]",
    ),
    mutant(
        "restored-lead-forgets-silent-servers",
        "A lead that was restored from its state counts the silence of every server anew.",
        "core:connect",
        "Servers(state.servers, job, routing, state.network, rounds, outbox, operators)",
        "Servers(begin_state(job).servers, job, routing, state.network, rounds, outbox, operators)",
        "tests/sim/test_lead_snapshot.py"
        "::test_a_lead_that_is_restored_after_every_event_does_the_same[1]",
    ),
    mutant(
        "a-fold-under-way-knows-every-removal",
        "Points of a member that dies during a fold are given away while its contribution may count.",
        "core:Removals.leave",
        "self._leaving.add(member)",
        "self._telling.add(member)",
        "tests/core/lead/rounds/test_during_folds.py"
        "::test_chunks_of_a_member_that_dies_during_a_fold_wait_for_the_next_one",
    ),
    mutant(
        "points-of-this-fold-are-those-of-the-next",
        "A checkpoint lacks points that were reported during its fold, so they are visited again.",
        "core:Counting._commit",
        "message.round > self._rounds.round",
        "message.round >= self._rounds.round",
        "tests/core/lead/test_cuts.py"
        "::test_points_that_are_reported_during_a_fold_belong_to_the_round_of_the_report",
    ),
    mutant(
        "noise-is-that-of-one-pass",
        "A healthy job with few contributions in a pass is told that its objective rises.",
        "core:_Losses.next_pass",
        "min(self._pairs, _KEPT_PAIRS)",
        "0",
        "tests/core/lead/progress/test_learning.py"
        "::test_noise_counts_as_a_rise_in_no_more_than_one_healthy_run_of_fifty",
    ),
    mutant(
        "a-pass-forgives-every-worker",
        "A worker is not reported any more, although its objective is still not finite.",
        "core:Learning.on_pass",
        "dict.fromkeys(sorted(self._unfinished))",
        "{}",
        "tests/core/lead/progress/test_learning.py"
        "::test_a_worker_stays_reported_until_its_own_objective_is_finite",
    ),
    mutant(
        "lease-of-the-last-batch",
        "A contribution names the lease of its last batch, and not that of its first one.",
        "core:_Batches.add",
        "not self.points",
        "True",
        "tests/core/worker/test_window.py::test_a_contribution_names_the_lease_of_its_first_batch",
    ),
    mutant(
        "first-loss-counts-dropped-points",
        "The loss of the first local step weighs as much as the dropped batches before it, too.",
        "core:Window.keep_first_loss",
        "self._work.weighed",
        "self._work.points",
        "tests/core/worker/test_window.py::test_the_first_loss_has_the_points_that_were_not_dropped",
    ),
    mutant(
        "round-of-the-slice-behind",
        "Contributions count in the round of the slice that is furthest behind.",
        "core:RoundsSlices._set_round",
        "max",
        "min",
        "tests/core/server/test_slices.py"
        "::test_a_round_folded_again_for_slices_that_lack_it_does_not_change_the_others",
    ),
    mutant(
        "stale-copy-supplies",
        "A server whose copy of a slice lacks steps reports that it has a contribution.",
        "core:HeldSlices._reliable",
        "all(held.is_current for held in copies)",
        "True",
        "tests/core/server/test_slices.py::test_a_copy_that_is_not_current_supplies_no_contribution",
    ),
)
