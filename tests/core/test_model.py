"""When the models of two workers differ, a text names their first difference."""

import pytest

from polyrhythm.core.model import difference, nonsense
from polyrhythm.wire.messages import ModelSpec, OptimizerSpec, TensorSpec

SGD = OptimizerSpec("SGD", ({"lr": 0.1},))


def tensor(name: str = "w", shape: tuple[int, ...] = (2, 3), **changes: object) -> TensorSpec:
    fields = {"dtype": "float32", "group": 0, "strides": (3, 1), **changes}
    return TensorSpec(name, shape, **fields)


def model(*tensors: TensorSpec, optimizer: OptimizerSpec = SGD) -> ModelSpec:
    return ModelSpec(tensors, optimizer)


def test_equal_models_do_not_differ() -> None:
    assert difference(model(tensor()), model(tensor())) is None


@pytest.mark.parametrize(
    ("theirs", "text"),
    [
        (model(tensor("v")), "it has the parameter 'v' where the job has the parameter 'w'"),
        (
            model(tensor("v", group=-1)),
            "it has the buffer or frozen parameter 'v' where the job has the parameter 'w'",
        ),
        (
            model(tensor(shape=(3, 2))),
            "the parameter 'w' has shape [3, 2], in the job it has [2, 3]",
        ),
        (
            model(tensor(dtype="float64")),
            "the parameter 'w' has dtype float64, in the job it has float32",
        ),
        (model(tensor(group=-1)), "'w' is not trained here, but the job trains it"),
        (
            model(tensor(group=1)),
            "the parameter 'w' is in parameter group 1 of the optimizer; in the job, in 0",
        ),
        (
            model(tensor(strides=(1, 2))),
            "the parameter 'w' has strides [1, 2], in the job it has [3, 1]: give all workers the same"
            " memory_format",
        ),
        (model(tensor(), tensor("b")), "it has 2 tensors, but the model of the job has 1"),
        (model(), "it has 0 tensors, but the model of the job has 1"),
    ],
)
def test_the_first_difference_is_told(theirs: ModelSpec, text: str) -> None:
    assert difference(model(tensor()), theirs) == text


def test_a_worker_that_trains_more_than_the_job_differs() -> None:
    told = difference(model(tensor(group=-1)), model(tensor()))
    assert told == "'w' is trained here, but not in the job (there it is frozen, or a buffer)"


def test_optimizers_are_compared_with_their_numbers() -> None:
    theirs = model(tensor(), optimizer=OptimizerSpec("SGD", ({"lr": 0.2},)))
    told = difference(model(tensor()), theirs)
    assert told is not None and "its optimizer is" in told and "0.2" in told and "0.1" in told


def test_servers_cannot_hold_a_model_without_elements() -> None:
    assert nonsense(model(tensor(shape=(0, 3)))) == "all of its tensors are empty"
    assert nonsense(model(tensor(shape=(0, 3)), tensor("v"))) is None
