"""Non-negative matrix factorisation of ratings (lines of a person, a thing and a rating), or of a
table of numbers: `--set data=ratings.csv --set k=10`, `--set form=table`.

With `--set observed=yes` only the given ratings count. The model file has the `components`, with a
column per thing in ascending order of its number."""

from polyrhythm.learn.data.ratings import open_ratings
from polyrhythm.learn.jobs.point_options import DATA, positive_integer, tolerance
from polyrhythm.learn.jobs.points import run, table_of
from polyrhythm.learn.pointwise.algorithm import Batch
from polyrhythm.learn.pointwise.factors import NMFAlgorithm
from polyrhythm.learn.pointwise.source import ArraySource, Source
from polyrhythm.learn.worker import Worker

DEFAULTS = {
    "epochs": 100,
    "kind": "statistics",
    "options": ["data", "k", "label", "form", "observed", "tol"],
}


def main(worker: Worker) -> None:
    options = worker.options
    source: Source
    if options.get("form") == "table":
        source = table_of(worker)
    else:
        source = ArraySource(Batch(open_ratings(options[DATA]).matrix))
    only = options.get("observed") == "yes"
    run(
        worker,
        NMFAlgorithm(
            positive_integer(options, "k", 8), observed_only=only, tol=tolerance(options, 1e-5)
        ),
        source,
    )
