"""Faults of jobs on a Ray cluster: what a job asks for and waits for, and what is lost between an
engine and its processes."""

from tests.mutants.mutant import Mutant, mutant

_DECISIONS = "tests/core/test_cluster.py"
_MESSAGES = "tests/engines/test_ray_messages.py"
_COMPILER = "tests/tensors/test_compiler.py"

CLUSTER: tuple[Mutant, ...] = (
    mutant(
        "gpu-worker-without-cpu",
        "A worker that asks for a GPU asks for no CPU, so Ray places too many of them on a node.",
        "core:_parse_demand",
        "amounts.setdefault(CPU, 1.0)",
        "amounts.setdefault(CPU, 0.0)",
        f"{_DECISIONS}::test_a_demand_without_cpus_still_asks_for_one",
    ),
    mutant(
        "servers-wait-for-no-worker",
        "A job that gets room for its servers, and never for a worker, waits forever.",
        "core:Placing.failure",
        "(servers and workers)",
        "servers",
        f"{_DECISIONS}::test_a_job_without_room_for_its_servers_or_any_worker_fails",
    ),
    mutant(
        "start-timeout-without-end",
        "A job that loses the node of its workers after a minute ends at once.",
        "core:Placing.failure",
        "self._lacking_s = None",
        "pass",
        f"{_DECISIONS}::test_workers_that_lose_their_node_have_the_whole_time_again",
    ),
    mutant(
        "lack-said-again-and-again",
        "The same line about missing room is printed every ten seconds.",
        "core:Placing.line",
        "lack == self._said",
        "False",
        f"{_DECISIONS}::test_a_line_about_missing_room_comes_late_and_seldom",
    ),
    mutant(
        "lead-told-to-leave",
        "The lead is said to leave a node that is drained, although it cannot.",
        "core:node_drains",
        "name != lead",
        "True",
        f"{_DECISIONS}::test_the_lead_cannot_leave_a_node_that_is_taken_away",
    ),
    mutant(
        "other-session-taken",
        "A job runs on the cluster of this process though another address was given.",
        "core:choose_address",
        "given not in (None, AUTO, joined)",
        "False",
        f"{_DECISIONS}::test_a_session_of_this_process_is_used",
    ),
    mutant(
        "client-session-taken",
        "A job runs in a session of Ray Client, through whose proxy its messages travel.",
        "core:choose_address",
        "joined == CLIENT",
        "False",
        f"{_DECISIONS}::test_a_session_of_this_process_is_used",
    ),
    mutant(
        "request-of-another-version-read",
        "A node with another version of polyrhythm reports that it cannot read its request.",
        "engines:RayProcess.run",
        "version != VERSION",
        "False",
        f"{_MESSAGES}::test_a_request_of_another_version_is_refused_before_it_is_read",
        slow=True,
    ),
    mutant(
        "unconfirmed-message-dropped",
        "A message of a process is lost if the call that returned it did not arrive.",
        "engines:Outbox.take",
        "del self._entries[:gone]",
        "del self._entries[: max(gone, 1)]",
        f"{_MESSAGES}::test_an_entry_is_returned_again_until_it_is_confirmed",
    ),
    mutant(
        "status-before-the-last-message",
        "A process counts as ended while messages of it are left, and these are lost.",
        "engines:Outbox.take",
        "len(entries) == len(self._entries)",
        "True",
        f"{_MESSAGES}::test_the_exit_status_comes_with_the_last_entry",
    ),
    mutant(
        "server-that-ends-with-the-lead-is-lost",
        "A job that resumes goes on with one server less, because a server saw the lead's end first.",
        "engines:Supervisor._on_server_exit",
        "over or follows or self._job.respawn",
        "over or self._job.respawn",
        "tests/engines/test_cluster_events.py"
        "::test_a_server_that_ends_with_the_lead_does_not_count_as_lost",
    ),
    mutant(
        "stopped-trial-without-a-word",
        "The journal of a trial that Ray Tune stops does not say that it was stopped.",
        "engines:Supervisor.run",
        'self._records.note("ended", {**STOPPED.noted(), "failed": False})',
        "pass",
        "tests/engines/test_far_host.py::test_the_journal_says_that_a_job_was_stopped_whose_program_ends",
    ),
    mutant(
        "place-sought-late",
        "A process that died begins to load its libraries only when the pause after its death is over.",
        "engines:Respawning.plan",
        "self._prepare(name)",
        "pass",
        "tests/engines/test_cluster_events.py"
        "::test_workers_whose_machine_is_taken_away_leave_and_are_started_elsewhere",
    ),
    mutant(
        "control-service-away-in-pieces",
        "Short absences of the control service add up, and end the job.",
        "core:ControlService.on_look",
        "self._away_since_s = None",
        "pass",
        f"{_DECISIONS}::test_a_control_service_that_came_back_has_the_whole_time_again",
    ),
    mutant(
        "node-takes-old-deaths",
        "A process that died long before its node counts as lost with the node.",
        "core:went_with_node",
        "now_s < died_s + _NODE_S",
        "True",
        f"{_DECISIONS}::test_a_process_that_died_shortly_before_its_node_was_found_dead_died_with_it",
    ),
    mutant(
        "marks-left-out-for-good",
        "Torch's compiler traces methods of optimizers that torch has marked as not to be compiled.",
        "tensors:_Watch.find_spec",
        "fullname == COMPILER",
        "False",
        f"{_COMPILER}::test_compiled_code_that_uses_an_optimizer_is_as_in_plain_torch",
        slow=True,
    ),
    mutant(
        "first-optimizer-loads-the-compiler",
        "Every process of a job loads torch's compiler, which takes as long as torch itself.",
        "tensors:prepare_optimizers",
        "setattr(function, _MARK, function)",
        "pass",
        f"{_COMPILER}::test_optimizers_do_not_load_the_compiler",
        slow=True,
    ),
)
