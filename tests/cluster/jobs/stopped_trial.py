"""A trial of Ray Tune whose job never ends by itself: Tune stops it after three reports.

`python stopped_trial.py ADDRESS FOLDER`: prints what each report contained.
"""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import ray
from ray import tune

if TYPE_CHECKING:
    import polyrhythm as pr


def main(worker: "pr.Worker") -> None:
    import torch  # the program that runs the trial does not need it

    model = torch.nn.Linear(2, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    while not worker.stopped:
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step(points=4)
        worker.evaluate(score=lambda: 1.0, every=5)
        time.sleep(0.01)


def trial(config: dict[str, str]) -> None:
    import polyrhythm as pr

    pr.train(main, engine="inline", workers=1, servers=1, runs_dir=config["runs"], quiet=True)
    raise AssertionError("a trial that Tune stops does not go on after its job")


class ReportPrinter(tune.Callback):  # type: ignore[misc]
    def on_trial_result(self, *, result: dict[str, float], **_: object) -> None:
        print("reported", *(result[name] for name in ("score", "round", "points")))


if __name__ == "__main__":
    address, folder = sys.argv[1], Path(sys.argv[2])
    ray.init(address, log_to_driver=False)
    (found,) = tune.Tuner(
        trial,
        param_space={"runs": str(folder / "runs")},
        run_config=tune.RunConfig(
            stop={"training_iteration": 3},
            storage_path=str(folder / "results"),
            callbacks=[ReportPrinter()],
            verbose=0,
        ),
    ).fit()
    print("ended with", found.error)
