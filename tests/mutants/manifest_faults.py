"""Faults in manifests: each makes a job that does not start, or that loses work when it is moved."""

from tests.mutants.mutant import Mutant, mutant

TESTS = "tests/manifests/test_kubernetes.py"

MANIFESTS: tuple[Mutant, ...] = (
    mutant(
        "a-switch-that-is-off-is-forgotten",
        "The lead's command in a manifest lacks a switch with which the user has turned something off.",
        "api:words_of",
        "[flag] if value else off",
        "[flag] if value else []",
        f"{TESTS}::test_the_lead_gets_the_options_of_train_as_they_were_given",
    ),
    mutant(
        "every-manifest-resumes",
        "The lead of a job without checkpoints is started again, and the job begins again.",
        "manifests:Plan.resumes",
        "bool(self.spec.checkpoint_every or self.given.get('store'))",
        "True",
        f"{TESTS}::test_a_job_with_checkpoints_continues_when_its_lead_is_started_again",
    ),
    mutant(
        "all-servers-in-the-stateful-set",
        "A manifest starts one server too many, because the first one runs beside the lead.",
        "manifests:_Written._servers",
        "plan.spec.servers - 1",
        "plan.spec.servers",
        f"{TESTS}::test_the_parts_name_each_other",
    ),
    mutant(
        "the-newest-run-without-a-checkpoint-is-continued",
        "A job that died before its first checkpoint hides the checkpoints of the run before.",
        "api:continuable",
        "next(filter(_has_checkpoint, urls), None)",
        "next(urls, None)",
        "tests/cluster/test_started_by_launchers.py"
        "::test_the_newest_run_with_a_checkpoint_is_continued",
    ),
    mutant(
        "a-percent-sign-is-a-specifier-of-systemd",
        "A unit replaces a percent sign in an option by the name of its host, for example.",
        "manifests:_word",
        "word.replace('%', '%%').replace('$', '$$')",
        "word.replace('$', '$$')",
        "tests/manifests/test_systemd.py::test_the_command_has_the_options_as_they_were_given",
    ),
    mutant(
        "two-jobs-of-slurm-share-a-port",
        "The lead listens on the usual port, and its workers look for it on that of the job.",
        "manifests:_command",
        """_PORT.sub('--port "$PORT"', ' '.join(lines), count=1)""",
        "' '.join(lines)",
        "tests/manifests/test_slurm.py::test_the_script_asks_for_workers_and_survives_nodes",
    ),
)
