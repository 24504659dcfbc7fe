"""Without rounds, the steps of P members together move the parameters about as far as the step of a
round would."""

import pytest
import torch

from polyrhythm.core.server.stepping import power_for

MEMBERS = 8
ROUNDS = {"RMSprop": 400}
"""The optimizers that are run for another number of rounds than 200. RMSprop needs more rounds, because
its mean of squares begins at 0 and is not corrected for that."""
NOISE = 16.0


def moved(optimizer: str, per_round: int, scale: float) -> float:
    """The mean distance by which noisy gradients with the mean 1 move the parameters. A round has
    MEMBERS batches and `per_round` steps. Each step uses the mean gradient of an equal part of the
    batches."""
    generator = torch.Generator().manual_seed(1)
    parameter = torch.nn.Parameter(torch.zeros(2000))
    made = getattr(torch.optim, optimizer)([parameter], lr=0.01 * scale)
    for _ in range(ROUNDS.get(optimizer, 200)):
        gradients = 1 + NOISE * torch.randn(MEMBERS, 2000, generator=generator)
        for part in gradients.view(per_round, -1, 2000).mean(1):
            parameter.grad = part
            made.step()
    return -parameter.mean().item()


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "Adamax", "RMSprop", "Adagrad"])
def test_the_steps_of_all_members_move_as_far_as_a_round(optimizer: str) -> None:
    scale = MEMBERS ** -power_for("auto", optimizer)
    alone = moved(optimizer, MEMBERS, scale)
    assert alone == pytest.approx(moved(optimizer, 1, 1.0), rel=0.25)


def moved_rows(per_round: int, scale: float) -> float:
    """The mean distance by which SparseAdam moves a table, each of whose rows is in every fourth round
    in the batch of one member. A round has MEMBERS batches and `per_round` steps."""
    generator = torch.Generator().manual_seed(1)
    table = torch.nn.Parameter(torch.zeros(4 * MEMBERS, 50))
    made = torch.optim.SparseAdam([table], lr=0.01 * scale, betas=(0.9, 0.95))
    at_once = MEMBERS // per_round
    for first in range(0, 120 * MEMBERS, at_once):
        rows = torch.arange(first, first + at_once) % len(table)
        gradients = (1 + NOISE * torch.randn(at_once, 50, generator=generator)) / at_once
        table.grad = torch.sparse_coo_tensor(
            rows[None], gradients, table.shape, check_invariants=True
        )
        made.step()
    return -table.mean().item()


def test_rare_rows_move_as_far_as_in_rounds() -> None:
    scale = MEMBERS ** -power_for("auto", "SparseAdam")
    assert moved_rows(MEMBERS, scale) == pytest.approx(moved_rows(1, 1.0), rel=0.25)


@pytest.mark.parametrize(
    ("optimizer", "power"), [("SGD", 1.0), ("AdamW", 0.5), ("SparseAdam", 0.0), ("Adagrad", 0.0)]
)
def test_the_default_is_the_scale_that_was_chosen_from_measurements(
    optimizer: str, power: float
) -> None:
    assert power_for("auto", optimizer) == power
