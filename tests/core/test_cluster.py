"""Decisions about the processes of a job on a cluster."""

import pytest

from polyrhythm.core.cluster import (
    CLIENT,
    ClusterNode,
    ControlService,
    Demand,
    Placing,
    check_ray,
    choose_address,
    demands_of,
    lacking,
    node_drains,
    node_lost,
    process_end,
    threads_for,
    went_with_node,
    with_node,
    worker_range,
)
from polyrhythm.errors import UsageError
from polyrhythm.observe.reasons import in_words

FLAG = "--resources-per-worker"
ONE_CPU = Demand()


# -- what processes ask for ----------------------------------------------------------------------


def test_a_process_asks_for_one_cpu_by_default() -> None:
    assert demands_of(FLAG, [], 2) == [Demand((("CPU", 1.0),))] * 2


def test_a_demand_has_resources_and_labels() -> None:
    (demand,) = demands_of(FLAG, ["GPU=0.5,CPU=2,region=eu,disk=3"], 1)
    assert demand.resources == {"CPU": 2.0, "GPU": 0.5, "disk": 3.0}
    assert demand.labels == (("region", "eu"),)
    assert str(demand) == "CPU=2,GPU=0.5,disk=3,region=eu"


def test_a_demand_without_cpus_still_asks_for_one() -> None:
    (gpu, none) = demands_of(FLAG, ["1:GPU=1", "CPU=0"], 2)
    assert gpu.resources == {"CPU": 1.0, "GPU": 1.0}
    assert none.resources == {"CPU": 0.0}


def test_demands_with_a_number_are_for_the_first_processes() -> None:
    found = demands_of(FLAG, ["CPU=4", "2:GPU=1"], 4)
    assert [each.resources.get("GPU", 0) for each in found] == [1, 1, 0, 0]
    assert [threads_for(each) for each in found] == [1, 1, 4, 4]


def test_a_fraction_of_a_cpu_gives_one_thread() -> None:
    assert threads_for(demands_of(FLAG, ["CPU=0.5"], 1)[0]) == 1
    assert threads_for(demands_of(FLAG, ["CPU=0"], 1)[0]) == 1
    assert threads_for(demands_of(FLAG, ["CPU=2.5"], 1)[0]) == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["GPU"], "'GPU' is not understood: give NAME=NUMBER"),
        (["CPU=1,"], "is not understood"),
        (["CPU=-1"], "CPU must be at least 0"),
        (["CPU=inf"], "CPU must be at least 0"),
        (["CPU=1", "CPU=2"], "is given twice for all processes: write 2:GPU=1"),
        (["3:GPU=1"], "is for 3 processes, and this command starts 2"),
    ],
)
def test_wrong_demands_are_refused(given: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        demands_of(FLAG, given, 2)
    assert str(error.value).startswith(FLAG)


# -- how many workers ----------------------------------------------------------------------------


def test_a_job_may_begin_with_fewer_workers_than_it_takes_in() -> None:
    assert worker_range("2..8") == (2, 8)
    assert worker_range("3") == worker_range(3) == (3, 3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("two", "give a number, or two, such as 2..8"),
        ("2..", "give a number, or two"),
        ("0", "--workers is 0: it must be at least 1"),
        ("4..2", "the second number must not be below the first"),
    ],
)
def test_wrong_numbers_of_workers_are_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        worker_range(text)


# -- which Ray -----------------------------------------------------------------------------------


def test_an_older_ray_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError) as error:
        check_ray("2.51.1")
    assert str(error.value) == (
        "--engine ray needs Ray 2.52 or later, and this is 2.51.1: run pip install -U"
        " 'polyrhythm[ray]'"
    )
    for version in ("2.52.0", "2.100.0", "3.0.0.dev0"):
        check_ray(version)


# -- which cluster -------------------------------------------------------------------------------


def test_the_option_comes_before_the_environment() -> None:
    assert choose_address("10.0.0.1:6379", "10.0.0.2:6379", None) == "10.0.0.1:6379"
    assert choose_address(None, "10.0.0.2:6379", None) == "10.0.0.2:6379"
    assert choose_address("auto", "10.0.0.2:6379", None) == "10.0.0.2:6379"
    assert choose_address("local", "10.0.0.2:6379", None) == "local"
    assert choose_address("auto", None, None) == "auto"
    assert choose_address(None, "", None) is None


def test_a_session_of_this_process_is_used() -> None:
    assert choose_address(None, "10.0.0.2:6379", "10.0.0.9:6379") == "10.0.0.9:6379"
    assert choose_address("10.0.0.9:6379", None, "10.0.0.9:6379") == "10.0.0.9:6379"
    with pytest.raises(UsageError, match="has joined the Ray cluster at 10.0.0.9:6379 already"):
        choose_address("10.0.0.1:6379", None, "10.0.0.9:6379")
    with pytest.raises(UsageError, match="this process has joined a cluster by Ray Client"):
        choose_address(None, None, CLIENT)


@pytest.mark.parametrize(
    ("given", "environment", "says"),
    [
        ("ray://10.0.0.1:10001", None, "--address ray://10.0.0.1:10001: Ray Client"),
        (None, "ray://10.0.0.1:10001", "RAY_ADDRESS ray://10.0.0.1:10001: Ray Client"),
        ("10.0.0.1", None, "give HOST:PORT, auto or local"),
        ("host:99999", None, "give HOST:PORT, auto or local"),
    ],
)
def test_wrong_addresses_are_refused(given: str, environment: str | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        choose_address(given, environment, None)


# -- room on the nodes ---------------------------------------------------------------------------

NODES = [
    ClusterNode("a", "10.0.0.1", totals={"CPU": 4.0}, labels={"region": "eu"}),
    ClusterNode("b", "10.0.0.2", totals={"CPU": 2.0}),
    ClusterNode("c", "10.0.0.3", alive=False, totals={"CPU": 2.0, "GPU": 8.0}),
]


def test_what_no_node_has_is_said_with_what_the_nodes_have() -> None:
    gpu = demands_of(FLAG, ["GPU=1"], 1)[0]
    assert lacking({"worker-0": gpu}, NODES, {"CPU": 6.0}) == (
        "worker-0 has not started yet and asks for CPU=1,GPU=1: no node of the cluster has that"
        " (nodes: CPU=2,GPU=0; CPU=4,GPU=0)"
    )
    labelled = Demand(labels=(("region", "us"),))
    assert "no node of the cluster has that" in lacking({"s0": labelled}, NODES, {"CPU": 6.0})
    there = Demand(labels=(("region", "eu"),))
    assert "no node" not in lacking({"s0": there}, NODES, {"CPU": 0.5})


def test_processes_that_have_room_are_starting_or_find_it_on_no_node() -> None:
    """Ray does not say whether it has chosen a node for an actor that has not begun."""
    two = demands_of(FLAG, ["CPU=2"], 1)[0]
    pending = {"s0": two, "s1": two}
    assert lacking({"s0": two}, NODES, {"CPU": 2.0}) == (
        "s0 has not started yet and asks for CPU=2: the cluster has CPU=2 free, so either it is"
        " starting, or no single node has enough"
    )
    assert lacking(pending, NODES, {"CPU": 4.0}).endswith(
        "CPU=4 free, so either they are starting, or no single node has enough"
    )
    assert lacking(pending, NODES, {"CPU": 3.9}).endswith("the cluster has CPU=3.9 free")


def test_processes_that_ask_for_the_same_share_a_sentence() -> None:
    two = demands_of(FLAG, ["CPU=2"], 1)[0]
    pending = {"s0": ONE_CPU, "worker-0": two, "s1": ONE_CPU}
    assert lacking(pending, NODES, {"CPU": 0.5}) == (
        "s0 and s1 have not started yet and ask for CPU=1 each: the cluster has CPU=0.5 free;"
        " worker-0 has not started yet and asks for CPU=2: the cluster has CPU=0.5 free"
    )


def test_a_line_about_missing_room_comes_late_and_seldom() -> None:
    placing = Placing(60.0, 100.0)
    assert placing.line("no room", 102.9) is None
    assert placing.line("no room", 103.0) == "no room"
    assert placing.line("no room", 130.0) is None, "the same words are said once"
    assert placing.line("less room", 131.0) == "less room"
    assert placing.line("no room", 140.9) is None
    assert placing.line("no room", 141.0) == "no room"
    assert placing.line("", 200.0) is None


def test_a_job_without_room_for_its_servers_or_any_worker_fails() -> None:
    placing = Placing(60.0, 100.0)
    assert placing.failure("no room", servers=False, workers=False, now_s=159.9) is None
    assert placing.failure("no room", servers=False, workers=True, now_s=160.0) == (
        "the cluster has no room for this job after 60 s: no room; ask for less, add nodes, or wait"
        " longer with --start-timeout"
    )
    assert placing.failure("no room", servers=True, workers=False, now_s=160.0) is not None
    assert placing.failure("no room", servers=True, workers=True, now_s=999.0) is None


def test_workers_that_lose_their_node_have_the_whole_time_again() -> None:
    placing = Placing(60.0, 100.0)
    assert placing.failure("", servers=True, workers=True, now_s=300.0) is None
    assert placing.failure("no room", servers=True, workers=False, now_s=301.0) is None
    assert placing.failure("no room", servers=True, workers=False, now_s=360.9) is None
    assert placing.failure("no room", servers=True, workers=False, now_s=361.0) is not None


# -- the control service -------------------------------------------------------------------------


def test_a_job_ends_once_when_the_control_service_was_away_for_20_s() -> None:
    control = ControlService()
    assert control.on_look(None, 1.0) is None and not control.away
    assert control.on_look("it hangs", 2.0) is None and control.away
    assert control.on_look("it hangs", 21.9) is None
    assert control.on_look("refused", 22.0) == (
        "the Ray cluster does not answer any more (refused)"
    )
    assert control.on_look("refused", 23.0) is None and control.away


def test_a_control_service_that_came_back_has_the_whole_time_again() -> None:
    control = ControlService()
    assert control.on_look("it hangs", 0.0) is None
    assert control.on_look(None, 19.0) is None and not control.away
    assert control.on_look("it hangs", 21.0) is None
    assert control.on_look("it hangs", 40.9) is None
    assert control.on_look("it hangs", 41.0) is not None


def test_a_process_that_died_shortly_before_its_node_was_found_dead_died_with_it() -> None:
    assert went_with_node(died_s=10.0, now_s=69.9)
    assert not went_with_node(died_s=10.0, now_s=70.0)


# -- how processes and nodes end -----------------------------------------------------------------

CRASHED = """The actor died unexpectedly before finishing this task.
\tip: 10.0.0.1
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit \
detail: Worker unexpectedly exits with a connection error code 2. End of file. Some common causes"""


@pytest.mark.parametrize(
    ("text", "node", "words"),
    [
        (
            CRASHED,
            "10.0.0.1",
            "its process died: it was killed, ran out of memory, or crashed (node 10.0.0.1)",
        ),
        ("its worker process has died. exit code 4.", "", "exit status 4"),
        (
            "The actor is dead because its node has died. Node Id: 1f",
            "10.0.0.2",
            "node 10.0.0.2 died",
        ),
        ("it was killed by `ray.kill`.", "10.0.0.1", "killed through Ray (node 10.0.0.1)"),
        (
            "because its owner has died. Owner Id: 05",
            "10.0.0.1",
            "the cluster has ended, or has lost the node of this command",
        ),
        (
            "ModuleNotFoundError: No module named 'polyrhythm'",
            "10.0.0.3",
            "No module named 'polyrhythm' (node 10.0.0.3): install it on every node, or send it along"
            " with 'ray job submit --working-dir' or a runtime_env",
        ),
        ("first\nsomething new\n", "", "something new"),
    ],
)
def test_the_end_of_a_process_in_words(text: str, node: str, words: str) -> None:
    assert process_end(text, node) == words


def test_a_missing_module_is_said_with_its_node_and_other_failures_are_kept() -> None:
    said = with_node("ModuleNotFoundError: No module named 'mine'\n  File job.py", "10.0.0.1")
    assert said.startswith(
        "ModuleNotFoundError: No module named 'mine' (node 10.0.0.1): install it"
    )
    assert said.endswith("\n  File job.py")
    other = "ValueError: wrong\nNo module named 'mine'"
    assert with_node(other, "10.0.0.1") == other


def test_a_dead_node_is_one_sentence_with_what_was_on_it() -> None:
    node = ClusterNode("c", "10.0.0.3", alive=False, died="health check failed")
    assert in_words(node_lost(node, ["worker-1", "s1"])) == (
        "node 10.0.0.3 died (health check failed); on it: worker-1, s1"
    )


def test_a_node_that_is_taken_away_is_announced() -> None:
    drains = node_drains("10.0.0.3", ["worker-1", "s1"], None, store=False)
    assert [in_words(each) for each in drains] == [
        "node 10.0.0.3 will be removed soon; leaving: worker-1, s1"
    ]


@pytest.mark.parametrize(
    ("store", "says"),
    [
        (False, "so the job ends with this node; with --store it could continue"),
        (True, "it takes a checkpoint now, from which the job can continue"),
    ],
)
def test_the_lead_cannot_leave_a_node_that_is_taken_away(store: bool, says: str) -> None:
    lines = list(node_drains("10.0.0.3", ["s0", "worker-1"], "s0", store=store))
    assert in_words(lines[0]).endswith("leaving: worker-1")
    assert "the lead runs there, in s0, and cannot move" in in_words(lines[1])
    assert says in in_words(lines[1])
    (alone,) = node_drains("10.0.0.3", ["s0"], "s0", store=store)
    assert alone == lines[1], "nothing leaves but the lead"
