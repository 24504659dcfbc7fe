"""Faults of what people see in a terminal: the live table, estimates and advice."""

from tests.mutants.mutant import Mutant, mutant

_PROGRESS = "tests/observe/test_progress.py"
_RESULT = "tests/observe/test_result.py"
_ADVICE = "tests/observe/test_advice.py"
_WHY = "tests/observe/test_why.py"
_SIGNALS = "tests/cli/test_signals.py"

TERMINAL: tuple[Mutant, ...] = (
    # -- estimates -----------------------------------------------------------------------------
    mutant(
        "a-target-has-an-estimate",
        "The time left of a job that a target may end earlier is not called a limit.",
        "observe:estimate",
        "bool(job.targets) or job.target_change is not None",
        "False",
        f"{_RESULT}::test_an_estimate_says_when_a_target_may_end_the_run_earlier",
    ),
    mutant(
        "no-estimate-in-the-first-pass",
        "A job with --epochs has no estimate until its first pass is over.",
        "observe:_by_passes",
        "state.data_points",
        "0",
        f"{_RESULT}::test_the_first_pass_is_estimated_by_the_size_of_the_data",
    ),
    # -- what commands say -----------------------------------------------------------------------
    mutant(
        "a-worker-that-starts-is-at-work",
        "`why` says that a worker is at work which has joined and has not contributed.",
        "observe:ObservedWorker.starting",
        "self.joined_late",
        "False",
        f"{_WHY}::test_a_worker_that_has_joined_is_at_work_when_it_has_contributed",
    ),
    mutant(
        "contributions-before-a-rejoin-count",
        "`why` says that a worker is at work which has rejoined, because it contributed before.",
        "observe:RunState._joined",
        'known.measured.get("contributions", 0)',
        "0",
        f"{_WHY}::test_a_worker_that_has_joined_is_at_work_when_it_has_contributed",
    ),
    mutant(
        "rounds-before-a-resume-count-twice",
        "The summary of a resumed job adds its earlier rounds to those since the resume.",
        "observe:summary_text",
        'counts["rounds"] -= resumed',
        "pass",
        f"{_RESULT}::test_after_a_resume_the_summary_says_what_it_counts_since_then",
    ),
    mutant(
        "unread-options-are-not-named",
        "An option of --set that the code does not read is accepted without a word.",
        "learn:_GivenOptions.__contains__",
        "self._read.add(str(name))",
        "self._read.update(super().keys())",
        "tests/learn/test_worker.py::test_options_that_the_code_has_not_read_are_named",
    ),
    # -- the live table ------------------------------------------------------------------------
    mutant(
        "pieces-of-the-table-stay",
        "A terminal that becomes narrower keeps pieces of the live table.",
        "observe:ProgressDisplay._erase_if_narrower",
        "self._columns >= before or not self._drawn",
        "True",
        f"{_PROGRESS}::test_a_table_that_the_terminal_has_broken_is_erased_whole",
    ),
    mutant(
        "the-table-is-cut",
        "Numbers of the live table are cut in a narrow terminal, where columns should be left out.",
        "observe:table",
        "width(_cells(kept)) <= columns",
        "True",
        f"{_PROGRESS}::test_no_line_of_the_live_table_is_longer_than_the_terminal",
    ),
    mutant(
        "wide-characters-count-once",
        "Names with wide characters make lines longer than the terminal.",
        "observe:cut",
        "cell_len(text) <= cells",
        "len(text) <= cells",
        f"{_PROGRESS}::test_no_line_of_the_live_table_is_longer_than_the_terminal",
    ),
    mutant(
        "the-fastest-workers-are-shown",
        "Of many workers, the live table shows those that need no attention.",
        "observe:_urgency",
        "row.mark is not None",
        "row.mark is None",
        f"{_PROGRESS}::test_of_more_workers_than_fit_those_that_need_attention_are_shown",
    ),
    mutant(
        "any-worker-is-slow",
        "A worker is called slow although it is about as fast as the others.",
        "observe:times_slower",
        "per_point[name] >= SLOWER * usual",
        "True",
        f"{_PROGRESS}::test_a_worker_that_is_nearly_as_fast_is_not_called_slow",
    ),
    mutant(
        "a-dumb-terminal-shows-nothing",
        "With TERM=dumb, no progress is shown.",
        "observe:ProgressDisplay.__init__",
        "self._console.is_terminal and not self._console.is_dumb_terminal",
        "self._console.is_terminal",
        f"{_PROGRESS}::test_a_terminal_that_cannot_move_its_cursor_gets_lines",
    ),
    mutant(
        "a-line-every-three-seconds",
        "The log of a job of ten hours has 12,000 lines of progress.",
        "observe:line_every_s",
        "at_s / _LINES_OF_TIME",
        "0.0",
        f"{_PROGRESS}::test_a_pipe_gets_lines_with_times_and_fewer_of_them_as_the_run_goes_on",
    ),
    # -- advice --------------------------------------------------------------------------------
    mutant(
        "the-slowest-worker-gains-too",
        "Advice promises that the worker becomes faster for which the others wait.",
        "observe:_gain_without_waits",
        "workers - 1",
        "workers",
        f"{_ADVICE}::test_one_is_waited_for",
    ),
    mutant(
        "local-steps-cost-no-exchange",
        "Advice promises that the exchange takes no time with more local steps.",
        "observe:advise",
        "exchange / times",
        "0.0",
        f"{_ADVICE}::test_the_exchange_takes_most",
    ),
    # -- signals -------------------------------------------------------------------------------
    mutant(
        "a-dropped-ctrl-c-has-no-effect",
        "The program goes on after Ctrl-C if Python drops the exception.",
        "cli:end_if_interrupted",
        "issubclass(dropped.exc_type, KeyboardInterrupt)",
        "False",
        f"{_SIGNALS}::test_ctrl_c_has_its_effect_though_python_drops_the_exception",
        slow=True,
    ),
    # -- signs of life, and the model at the end -------------------------------------------------
    mutant(
        "a-server-is-silent-for-ever",
        "A server that sends heartbeats again is still shown as silent.",
        "observe:RunState._heard",
        'self.silent.pop(line["server"], None)',
        "None",
        "tests/observe/test_run_state.py::test_a_server_is_silent_until_it_is_heard_again",
    ),
    mutant(
        "a-model-that-waits-for-the-disk-has-a-moment-left",
        "While the model waits for the disk, the terminal goes on saying that less than 1 s is left.",
        "observe:headline",
        "state.saving",
        "False",
        f"{_PROGRESS}::test_a_job_that_is_over_tells_of_its_model_and_not_of_time_that_is_left",
    ),
)
