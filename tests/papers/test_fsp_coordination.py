"""FSP §5.2 and §6.1: who pauses when, and the baselines. Each test quotes the sentence it checks."""

from polyrhythm.core.sync.batchsize import BatchSize, MeasuredBatch
from polyrhythm.core.sync.lateness import Lateness

MS = 10**6


def test_a_straggler_commits_in_advance() -> None:
    """ "A straggler can execute a short interval, so as to commit results in advance and then the
    coordinator can receive reports at roughly the same time instance." """
    delays_ns = {1: 1 * MS, 2: 40 * MS}
    lateness, spreads = Lateness(), []
    for _ in range(10):
        arrivals = {}
        for worker, delay_ns in delays_ns.items():
            arrivals[worker] = lateness.own_interval(worker, 200 * MS) + delay_ns
            lateness.arrived(worker, 0, arrivals[worker])
        spreads.append(abs(arrivals[1] - arrivals[2]))
    assert spreads[-1] < 0.1 * spreads[0]
    assert lateness.own_interval(2, 200 * MS) < lateness.own_interval(1, 200 * MS)


def test_the_interval_is_uniform_and_the_shortening_is_each_ones_own() -> None:
    """ "that allows the i-th worker to personalize its real barrier interval": one worker's delay
    shortens nobody else's interval."""
    lateness = Lateness()
    for worker in (1, 2):
        lateness.own_interval(worker, 200 * MS)
    lateness.arrived(1, 0, 230 * MS)
    assert lateness.own_interval(1, 200 * MS) == 170 * MS
    assert lateness.own_interval(2, 200 * MS) == 200 * MS


def test_bspv_seeks_only_at_the_beginning() -> None:
    """ "automatically seeks an optimal batch size based on cost-benefit analysis [10] at the very
    beginning of computations" """
    sizes, objective, told = BatchSize(), 10.0, []
    for round_ in range(60):
        terms = sizes.next()
        told.append(terms)
        assert terms.points is not None
        objective -= (0.001 if round_ < 30 else 0.1) * terms.points**0.5
        read = objective if terms.probe else None
        sizes.closed(MeasuredBatch(terms.points * MS + 50 * MS, read, 1000))
    assert len(set(told[:30])) > 2
    assert len(set(told[30:])) == 1
