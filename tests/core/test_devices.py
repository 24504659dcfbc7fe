"""Which device each worker gets, and which lists of devices are refused."""

import pytest

from polyrhythm.core.devices import (
    Assignment,
    CudaFound,
    asked_by,
    assign,
    device_of_process,
    local_number,
    parse_devices,
)
from polyrhythm.errors import UsageError
from polyrhythm.observe.reasons import in_words

NONE = CudaFound(missing="torch 2.13.0+cpu is built without it")


def assigned(text: str, workers: int, found: CudaFound) -> Assignment:
    items = parse_devices(text)
    return assign([asked_by(items, number) for number in range(workers)], found)


@pytest.mark.parametrize(
    ("text", "count", "devices"),
    [
        ("cpu", 0, ["cpu", "cpu", "cpu"]),
        ("cpu", 2, ["cpu", "cpu", "cpu"]),
        ("auto", 0, ["cpu", "cpu", "cpu"]),
        ("auto", 1, ["cuda:0", "cuda:0", "cuda:0"]),
        ("auto", 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("auto", 8, ["cuda:0", "cuda:1", "cuda:2"]),
        ("cuda", 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda:1", 2, ["cuda:1", "cuda:1", "cuda:1"]),
        ("cuda:1,cuda:0", 2, ["cuda:1", "cuda:0", "cuda:1"]),
        ("cuda:0,cpu,cpu,cpu,cpu", 1, ["cuda:0", "cpu", "cpu", "cpu", "cpu"]),
        (" cuda:0 , cpu", 1, ["cuda:0", "cpu", "cuda:0"]),
        ("cuda,cpu", 2, ["cuda:0", "cpu", "cuda:1", "cpu"]),
        ("auto,cpu", 0, ["cpu", "cpu", "cpu"]),
    ],
)
def test_workers_get_the_items_of_the_list_in_turn(
    text: str, count: int, devices: list[str]
) -> None:
    assert list(assigned(text, len(devices), CudaFound(count)).devices) == devices


def test_no_workers_need_no_devices() -> None:
    assert assigned("cuda:7", 0, NONE) == Assignment(())


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:01", "cuda:0;cuda:1", "cpu,,cpu", "CPU", "0,1"],
)
def test_a_list_that_is_not_understood_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_devices(text)
    words = str(refused.value)
    assert f"--devices {text!r} is not understood" in words and "cuda:0,cuda:1" in words
    assert "\n" not in words


def test_a_long_list_names_the_item_that_is_not_understood() -> None:
    with pytest.raises(UsageError, match=r"'gpu' in --devices 'cpu,gpu,cpu' is not understood"):
        parse_devices("cpu,gpu,cpu")


@pytest.mark.parametrize("text", ["cuda", "cuda:0", "cpu,cuda:0"])
def test_asking_for_cuda_without_cuda_says_why_there_is_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"CUDA is not available: torch 2.13.0\+cpu is built with"):
        assigned(text, 2, NONE)


@pytest.mark.parametrize(
    ("count", "there"), [(1, "this machine has only cuda:0"), (4, "has cuda:0 to cuda:3")]
)
def test_a_device_that_does_not_exist_is_refused_with_those_that_do(count: int, there: str) -> None:
    with pytest.raises(UsageError, match=f"--devices cuda:7: there is no such device; .*{there}"):
        assigned("cuda:0,cuda:7", 2, CudaFound(count))


def test_a_device_that_no_worker_asks_for_is_not_checked() -> None:
    assert assigned("cpu,cuda:7", 1, NONE).devices == ("cpu",)


def notes(text: str, workers: int, found: CudaFound) -> list[str]:
    return [
        in_words(note, lambda n: f"worker-{n}") for note in assigned(text, workers, found).notes
    ]


def test_a_message_names_the_workers_that_share_a_cuda_device() -> None:
    more = "there are more workers than devices"
    assert notes("auto", 3, CudaFound(2)) == [f"worker-0 and worker-2 share cuda:0: {more}"]
    assert notes("cuda:1,cuda:1,cuda:0", 3, CudaFound(2)) == [
        f"worker-0 and worker-1 share cuda:1: {more}"
    ]
    assert notes("auto", 2, CudaFound(2)) == []
    assert notes("cpu", 9, CudaFound(2)) == []
    assert notes("cuda:0,cpu,cpu", 3, CudaFound(1)) == []


def test_forked_workers_do_not_get_cuda_after_it_was_initialised() -> None:
    poisoned = CudaFound(2, forked=False)
    assert assigned("auto", 2, poisoned).devices == ("cpu", "cpu")
    assert "has initialised CUDA" in notes("auto", 2, poisoned)[0]
    assert notes("cpu", 2, poisoned) == []
    with pytest.raises(UsageError, match="let main"):
        assigned("cuda:0", 1, poisoned)


@pytest.mark.parametrize(
    ("environ", "number"),
    [
        ({}, 0),
        ({"LOCAL_RANK": "3", "RANK": "11"}, 3),
        ({"SLURM_LOCALID": "2"}, 2),
        ({"LOCAL_RANK": "-1"}, 0),
        ({"LOCAL_RANK": "nonsense", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 1),
    ],
)
def test_a_launcher_numbers_the_processes_of_a_host(environ: dict[str, str], number: int) -> None:
    assert local_number(environ) == number


@pytest.mark.parametrize(
    ("text", "number", "device"),
    [
        ("auto", 0, "cuda:0"),
        ("auto", 3, "cuda:1"),
        ("cuda:1", 0, "cuda:1"),
        ("cuda:0,cpu", 1, "cpu"),
        ("cpu", 5, "cpu"),
    ],
)
def test_a_process_without_an_engine_takes_the_device_of_its_number(
    text: str, number: int, device: str
) -> None:
    assert device_of_process(text, CudaFound(2), number) == device
