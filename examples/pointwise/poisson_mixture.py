"""A mixture of Poisson distributions: counts of events whose rates depend on a hidden group."""

import numpy as np

from polyrhythm.pointwise import Algorithm, ArraySource, Batch, run_pointwise

DEFAULTS = {"epochs": 100, "kind": "statistics"}


class PoissonMixture(Algorithm):
    def __init__(self, k):
        self.k = k

    def init_parameter(self, sample, rng):
        some = sample.x[rng.choice(len(sample), self.k, replace=False)]
        return {"rates": some + 0.5, "weights": np.full(self.k, 1 / self.k)}

    def statistics(self, parameter):
        return {"count": (self.k,), "sum": parameter["rates"].shape, "entropy": ()}

    def update_points(self, batch, parameter, memory):
        rates = parameter["rates"]
        logs = batch.x @ np.log(rates).T - rates.sum(1) + np.log(parameter["weights"])
        loglik = np.logaddexp.reduce(logs, axis=1)
        share = np.exp(logs - loglik[:, None])
        entropy = loglik - (share * logs).sum(1)
        return {"count": share.sum(0), "sum": share.T @ batch.x, "entropy": entropy.sum()}

    def update_parameter(self, statistics, old):
        count = statistics["count"] + 1e-9
        rates = (statistics["sum"] + 1e-9) / count[:, None]
        return {"rates": rates, "weights": count / count.sum()}

    def objective(self, statistics, parameter):
        count, rates = statistics["count"], parameter["rates"]
        expected = (statistics["sum"] * np.log(rates)).sum()
        expected += count @ (np.log(parameter["weights"]) - rates.sum(1))
        return -float(expected + statistics["entropy"])

    def terminated(self, check):
        return check.gain < 1e-3


def main(worker):
    rng = np.random.default_rng(0)
    rates = np.array([[2.0, 9.0, 4.0], [8.0, 1.0, 4.0], [5.0, 5.0, 20.0]])
    counts = rng.poisson(rates[rng.integers(0, 3, 20_000)]).astype(float)
    run_pointwise(worker, PoissonMixture(3), ArraySource(Batch(counts)))
