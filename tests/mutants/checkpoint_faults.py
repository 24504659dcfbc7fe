"""Faults of checkpoints and resumes: with each, the parts of a checkpoint do not belong
together."""

from tests.mutants.mutant import Mutant, mutant

_CUTS = "tests/core/lead/test_cuts.py"
_STORE = "tests/runtime/server/test_slice_store.py"

CHECKPOINTS: tuple[Mutant, ...] = (
    mutant(
        "epochs-restart-at-1",
        "After a resume, incarnations of the time before the checkpoint come again.",
        "core:View.resume",
        "self.epoch = epoch",
        "self.epoch = 0",
        f"{_CUTS}::test_epochs_and_incarnations_continue_after_a_resume",
    ),
    mutant(
        "routing-epoch-restarts",
        "After a resume, servers have incarnations that others had before the checkpoint.",
        "core:RoutingTable.resume",
        "self.epoch = epoch",
        "self.epoch = 0",
        f"{_CUTS}::test_epochs_and_incarnations_continue_after_a_resume",
    ),
    mutant(
        "no-optimizer-state-for-one-slice",
        "One slice of a checkpoint lacks its optimizer state.",
        "runtime:SliceStore.copied",
        "{**state, PARAMETERS: state[PARAMETERS].clone()}",
        "{**(state if id_ else {}), PARAMETERS: state[PARAMETERS].clone()}",
        f"{_STORE}::test_a_copy_of_a_cut_restored_elsewhere_folds_on_as_the_original_does",
        slow=True,
    ),
    mutant(
        "cut-shares-memory",
        "A copy of the parameters changes with the next fold.",
        "runtime:SliceStore.copied",
        "state[PARAMETERS].clone()",
        "state[PARAMETERS]",
        f"{_STORE}::test_a_copy_is_not_changed_by_later_folds_and_counts_torn_contributions",
        slow=True,
    ),
    mutant(
        "chunk-progress-from-after-the-cut",
        "Points count as visited whose contribution is not in the slices of the checkpoint.",
        "core:DataPlan.recorded",
        "self._ahead.folded(index, (chunk.passes, chunk.cursor))",
        "(chunk.passes, chunk.cursor)",
        f"{_CUTS}::test_progress_of_a_contribution_that_is_not_in_the_cut_is_not_in_the_record",
    ),
    mutant(
        "split-folds-are-cut",
        "A contribution is in the cut of one server and not in that of another.",
        "core:Cuts._disturbed",
        "self._contributions.split(self._rounds.round)",
        "False",
        f"{_CUTS}::test_a_fold_with_a_contribution_on_some_servers_only_is_no_cut",
    ),
    mutant(
        "routes-overtake-a-fold",
        "A fold that waited for a cut is made with other slices than those for which it was ordered.",
        "core:ServerMachine._on_cut_copied",
        "state.epoch.changing and not state.writing",
        "state.epoch.changing",
        "tests/core/server/test_server_cuts.py"
        "::test_a_fold_that_waits_for_a_cut_is_made_with_the_slices_for_which_it_was_ordered",
    ),
    mutant(
        "torn-cuts-count",
        "A contribution is in some slices of a server's cut and not in others.",
        "core:Cuts.on_taken",
        "message.torn",
        "False",
        f"{_CUTS}::test_a_cut_that_a_server_found_torn_is_given_up_and_the_next_fold_is_tried",
    ),
    mutant(
        "cut-while-contributions-are-in-flight",
        "Without rounds, a contribution is in some slices of the cut and not in others.",
        "core:Cuts._quiet",
        "changing or self._contributions.any",
        "changing",
        f"{_CUTS}::test_without_rounds_the_cut_waits_until_nothing_is_in_flight",
    ),
    mutant(
        "workers-proceed-before-all-have-copied",
        "Without rounds, a contribution is folded on a server that has not copied its slices yet.",
        "core:Cuts.on_taken",
        "not cut.untaken",
        "True",
        f"{_CUTS}::test_without_rounds_the_cut_waits_until_nothing_is_in_flight",
    ),
    mutant(
        "state-from-after-the-cut",
        "The kept state contains a step of the scheduler whose contribution is not in the cut.",
        "core:Training.on_keep",
        "state.pushes.held is not None or state.phase is Phase.RESTING",
        "state.phase is Phase.RESTING",
        "tests/core/worker/test_worker_machine.py"
        "::test_a_state_is_copied_at_once_while_the_next_contribution_is_kept_back",
    ),
    mutant(
        "keeper-is-a-newcomer",
        "The kept state is that of a worker that has not seen the earlier rounds.",
        "core:_seniority",
        "member.late, entered, len(member.name), member.name",
        "False, 0, len(member.name), member.name",
        "tests/core/lead/test_keeping.py"
        "::test_a_worker_that_came_back_has_not_seen_all_rounds_and_is_asked_last",
    ),
    mutant(
        "checkpoint-without-the-lost-state",
        "A checkpoint is made without the state because the worker that was asked for it died.",
        "core:StateKeeping.pending",
        "self._state.wanted is not None and not self._state.wanted.whole",
        "False",
        "tests/core/lead/test_keeping.py"
        "::test_if_the_keeper_is_lost_the_next_cut_asks_its_successor",
    ),
    mutant(
        "any-member-sends-a-state",
        "A member that was not asked makes the lead's process hold its bytes.",
        "runtime:KeptStates.take",
        "wanted != (message.number, message.worker, message.incarnation)",
        "False",
        "tests/runtime/server/test_kept_states.py"
        "::test_a_state_that_was_not_asked_for_takes_no_memory",
    ),
    mutant(
        "late-answer-counts-for-the-next-cut",
        "A cut is taken while a worker that has not withheld yet may still contribute.",
        "core:Cuts.on_withheld",
        "cut is not None and cut.number == message.number and key in cut.told",
        "cut is not None and key in cut.told",
        _CUTS + "::test_a_late_answer_to_a_cut_that_was_given_up_does_not_count_for_the_next_one",
    ),
)
