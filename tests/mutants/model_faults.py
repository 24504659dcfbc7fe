"""Faults of saving the model: with each, the model is not saved, or a wrong model is."""

from tests.mutants.mutant import Mutant, mutant

_LEAD = "tests/core/lead/test_saving.py"
_BEST = "tests/core/lead/test_keep_best.py"
_SERVER = "tests/core/server/test_sending_parameters.py"
_FILE = "tests/store/test_model_file.py"

MODEL: tuple[Mutant, ...] = (
    mutant(
        "replica-not-asked-for-slices",
        "The job ends without its model if a server dies while it sends its slices.",
        "core:Saving.ask",
        "self._state.asked.get(slice_) == (server, incarnations[server])",
        "slice_ in self._state.asked",
        f"{_LEAD}::test_the_replica_of_a_lost_server_is_asked_for_what_is_missing",
    ),
    mutant(
        "all-slices-at-once",
        "The lead's process holds a second copy of the model if its disk is slow.",
        "core:Saving.ask",
        "slices[: max(0, _AT_ONCE - busy.get(server, 0))]",
        "slices",
        f"{_LEAD}::test_few_slices_are_asked_for_at_a_time",
    ),
    mutant(
        "model-of-lost-slices",
        "A job that has lost slices waits for a minute to save them.",
        "core:Ending.finish",
        "self._state.saves and self._rounds.open and not lost",
        "self._state.saves and self._rounds.open",
        f"{_LEAD}::test_a_job_that_loses_slices_saves_nothing",
    ),
    mutant(
        "unsaved-model-is-a-success",
        "A job that reached its goal and lost its model ends with status 0.",
        "core:Ending._not_saved",
        "not outcome.failed",
        "False",
        f"{_LEAD}::test_a_fault_of_the_disk_ends_the_job_with_its_words",
    ),
    mutant(
        "parameters-sent-during-a-fold",
        "Some slices of the model are of the round before, or half written.",
        "core:ServerMachine._send_parameters",
        "not self._collects or state.writing or state.epoch.changing or (not state.has_state)",
        "not self._collects or state.epoch.changing or (not state.has_state)",
        f"{_SERVER}::test_parameters_are_sent_when_the_fold_that_was_ordered_before_is_done",
    ),
    mutant(
        "folds-on-arrival-after-the-request",
        "Without rounds, contributions of a failed job are in some slices of the model only.",
        "core:ServerMachine._send_parameters",
        "self.mode.freeze()",
        "None",
        f"{_SERVER}::test_a_server_that_folds_on_arrival_folds_nothing_after_the_request",
    ),
    mutant(
        "best-of-another-version",
        "The best model is not the one that was evaluated, and the journal says that it is.",
        "core:KeepBest._copy_if_due",
        "due.evaluated == self._rounds.round",
        "True",
        f"{_BEST}::test_a_version_that_is_gone_or_was_none_is_replaced_by_the_next_fold",
    ),
    mutant(
        "job-ends-without-its-best-model",
        "The file of the best model is removed half written if the job ends meanwhile.",
        "core:Ending._end_if_written",
        "not self._best.active",
        "True",
        f"{_BEST}::test_the_job_ends_when_both_files_are_written",
    ),
    mutant(
        "tied-weights-are-zero",
        "A tied weight has its values under one of its names only.",
        "store:ModelFile.commit",
        "self._repeat()",
        "None",
        f"{_FILE}::test_a_fresh_model_loads_the_file_strictly_and_is_equal[tied]",
    ),
    mutant(
        "channels-last-is-shuffled",
        "Convolutions in channels_last are saved with their elements in another order.",
        "store:ModelFile.commit",
        "self._reorder()",
        "None",
        f"{_FILE}::test_a_fresh_model_loads_the_file_strictly_and_is_equal[channels_last]",
    ),
    mutant(
        "tied-weights-before-their-order",
        "A tied weight in channels_last is saved with another order under its second name.",
        "store:ModelFile.commit",
        "self._reorder()\nself._repeat()",
        "self._repeat()\nself._reorder()",
        f"{_FILE}::test_a_fresh_model_loads_the_file_strictly_and_is_equal[tied channels_last]",
    ),
    mutant(
        "best-loss-is-the-highest",
        "With --keep-best val_loss the worst model is kept.",
        "core:KeepBest._better",
        "value < self.best if self._lowest else value > self.best",
        "value > self.best",
        f"{_BEST}::test_a_loss_is_best_when_it_is_lowest",
    ),
    mutant(
        "evaluation-counts-for-one-worker",
        "The value of an earlier evaluator stays in the mean of a target.",
        "core:Reported.take",
        "self._values[name] = {worker: value}",
        "self._values.setdefault(name, {})[worker] = value",
        "tests/core/lead/progress/test_targets.py::test_an_evaluation_stands_for_all_workers",
    ),
    mutant(
        "late-metric-fails-the-job",
        "A job whose target is reported once per pass fails before the first pass is over.",
        "core:Targets.hopeless",
        "passes is not None and passes < _PASSES",
        "False",
        "tests/core/lead/progress/test_targets.py::test_a_job_whose_only_target_is_never_reported_fails",
    ),
)
