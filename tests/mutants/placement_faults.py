"""Faults in how slices are assigned to servers: rounds that are longer than they need be, and slices
that move for nothing."""

from tests.mutants.mutant import Mutant, mutant

_PAPER = "tests/papers/test_aware.py"
_FORECAST = "tests/core/placement/test_forecast.py"
_LEAD = "tests/core/lead/servers/test_placement.py"

PLACEMENT: tuple[Mutant, ...] = (
    mutant(
        "load-below-nothing",
        "A host that is too slow for any slice gets less than nothing, as in the paper's Algorithm 1.",
        "core:water_fill",
        "level >= lines[slow[-1]].lowest[0]",
        "True",
        f"{_PAPER}::test_without_overlap_equal_shares_are_best_if_slow_nodes_have_workers",
    ),
    mutant(
        "overlap-assumed",
        "The forecast adds pushes and pulls, although workers pull after all have pushed.",
        "core:Placement.__init__",
        "not traits.rounds",
        "True",
        f"{_LEAD}::test_colocated_servers_keep_equal_shares_with_rounds",
    ),
    mutant(
        "idle-servers-not-probed",
        "A server that should hold nothing gets no probe slice, so it is never measured again.",
        "core:PROBES",
        "2",
        "0",
        f"{_PAPER}::test_every_server_gets_probe_slices",
    ),
    mutant(
        "share-exceeded",
        "A server gets further slices although it has its share.",
        "core:_Plan.best",
        "roomy or self.room",
        "self.room",
        f"{_PAPER}::test_a_server_with_its_share_gets_no_more_slices",
    ),
    mutant(
        "slices-do-not-stay",
        "A new assignment ignores where slices are.",
        "core:assign_slices",
        "plan.room.get(server, 0.0) >= sizes[slice_] / 2",
        "False",
        f"{_PAPER}::test_slices_that_fit_stay_where_they_are",
    ),
    mutant(
        "slow-links-ignored",
        "A link that is slower than its hosts is no limit.",
        "core:_slowest_link",
        "min(most, slowest / (count * shared))",
        "most",
        f"{_FORECAST}::test_a_link_is_a_limit_if_its_hosts_do_not_explain_its_rate",
    ),
    mutant(
        "moves-cost-nothing",
        "Slices move although the job ends before that has paid for itself.",
        "core:Prospect.pays",
        "saved_s > self.moving_s",
        "True",
        f"{_LEAD}::test_what_does_not_pay_is_not_moved",
    ),
    mutant(
        "noise-is-a-gain",
        "A gain within the error of the measurements moves slices.",
        "core:Prospect.pays",
        "LEAST_GAIN + NOISE / math.sqrt(max(1, measured))",
        "LEAST_GAIN",
        f"{_FORECAST}::test_gain_must_exceed_the_error_of_measurements_and_pay_for_moves",
    ),
    mutant(
        "one-measurement-suffices",
        "A single measurement moves slices.",
        "core:CONFIRMATIONS",
        "2",
        "1",
        f"{_LEAD}::test_one_measurement_is_not_enough",
    ),
    mutant(
        "measurement-counted-again",
        "A rate that has not been measured since the last round counts as another measurement.",
        "core:SteadyRate.add",
        "rate == self.seen",
        "False",
        f"{_LEAD}::test_one_measurement_is_not_enough",
    ),
    mutant(
        "absurd-rates-believed",
        "A rate that is infinite or not a number is used.",
        "core:is_rate",
        "math.isfinite(rate)",
        "True",
        f"{_LEAD}::test_absurd_measurements_are_ignored",
    ),
    mutant(
        "goal-not-kept",
        "Slices that move get another goal with every new measurement.",
        "core:RoutingTable.goal",
        "goal.servers != staying or len(goal.routes) != len(self._sizes)",
        "True",
        f"{_LEAD}::test_moves_do_not_change_their_goal",
        f"{_LEAD}::test_slices_follow_the_throughput",
    ),
    mutant(
        "restored-lead-forgets-rates",
        "A lead that was restored from its state measures the rates of hosts anew.",
        "core:connect",
        "state.placement",
        "PlacementState()",
        f"{_LEAD}::test_a_restored_lead_goes_on_from_what_was_measured",
    ),
    mutant(
        "server-left-beside-no-worker",
        "A colocated worker that leaves does not tell its server to leave.",
        "cli:_server_beside",
        "process.terminate()",
        "pass",
        "tests/cluster/test_aware_placement.py::test_a_worker_brings_a_server_and_takes_it_away",
        slow=True,
    ),
)
