"""Ray Tune tries learning rates and policies, and stops trials that do badly (ASHA). Every trial is a
job with two workers and a server, whose processes have their places in the trial's own placement
group.

    pip install 'polyrhythm[ray]' 'ray[tune]'
    python tune.py
"""

import sys

import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import polyrhythm as pr

WORKERS, SERVERS = 2, 1


def main(worker: pr.Worker) -> None:
    inputs = torch.linspace(-1, 1, 400).unsqueeze(1)
    model = torch.nn.Linear(1, 1)
    rate = float(worker.options["rate"])
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=rate))
    for x, y in worker.batches((inputs, 3 * inputs), batch_size=20):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step(objective=loss)
        # every evaluation is reported to Tune, which may stop the trial then
        worker.evaluate(lambda: {"error": abs(model.weight.item() - 3)}, every="pass")


def trial(config: dict[str, object]) -> None:
    result = pr.train(
        main,
        engine="ray",
        workers=WORKERS,
        servers=SERVERS,
        resources_per_worker={"CPU": 0.5},
        resources_per_server={"CPU": 0.5},
        sync=str(config["sync"]),
        set={"rate": config["rate"]},
        epochs=10,
        quiet=True,
    )
    tune.report({"error": result.metrics["error"]}, checkpoint=result.to_ray_checkpoint())


def sweep(rates: list[float], policies: list[str]) -> tune.ResultGrid:
    # the first bundle is for the trial itself, the others are for the processes of its job
    places = tune.PlacementGroupFactory([{"CPU": 0.1}] + [{"CPU": 0.5}] * (WORKERS + SERVERS))
    space = {"rate": tune.grid_search(rates), "sync": tune.grid_search(policies)}
    stopping = ASHAScheduler(metric="error", mode="min", grace_period=2)
    tuner = tune.Tuner(
        tune.with_resources(trial, places),
        param_space=space,
        tune_config=tune.TuneConfig(scheduler=stopping),
    )
    return tuner.fit()


if __name__ == "__main__":
    rates = [float(rate) for rate in sys.argv[1:]] or [0.01, 0.1, 0.5]
    best = sweep(rates, ["bsp", "asp"]).get_best_result("error", "min")
    print(f"best: {best.config}, error {best.metrics['error']:.4g}")
