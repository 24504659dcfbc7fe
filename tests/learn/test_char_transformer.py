"""The built-in language model: its text, what the model may see, and training with an outer
optimizer."""

import sys

import pytest
import torch

from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import UsageError
from polyrhythm.learn.jobs import char_transformer as ct
from polyrhythm.wire.messages import JobSpec

SAYING = "tick, tock; "


def test_the_text_comes_with_python_and_is_cut_into_pieces() -> None:
    text = ct.cut(ct.read())
    assert len(text.train) > 5_000
    assert text.train.shape[1] == ct.CONTEXT + 1
    assert 8 < len(text.train) / len(text.test) < 10
    assert int(text.train.max()) < len(ct.ALPHABET)


def test_pieces_follow_one_another_and_unknown_characters_are_spaces() -> None:
    pieces = ct.cut("x" + "é" * 2 * ct.CONTEXT).train
    written = ["".join(ct.ALPHABET[number] for number in piece) for piece in pieces]
    assert written == ["x" + " " * ct.CONTEXT, " " * (ct.CONTEXT + 1)]


def test_a_prediction_depends_on_earlier_characters_only() -> None:
    model = ct.CharTransformer()
    generator = torch.Generator().manual_seed(1)
    one = torch.randint(len(ct.ALPHABET), (2, 20), generator=generator)
    other = one.clone()
    other[:, 12:] = (other[:, 12:] + 1) % len(ct.ALPHABET)
    scores, changed = model(one), model(other)
    torch.testing.assert_close(scores[:, :12], changed[:, :12])
    assert (scores[:, 12:] - changed[:, 12:]).abs().max() > 1e-4


def test_a_model_without_preferences_has_the_perplexity_of_its_alphabet() -> None:
    model = ct.CharTransformer()
    with torch.no_grad():
        for parameter in model.scores.parameters():
            parameter.zero_()
    measured = ct.measure(model, ct.cut(SAYING * 160).train)
    assert measured["perplexity"] == pytest.approx(len(ct.ALPHABET), rel=1e-4)
    assert measured["accuracy"] < 0.2


def test_local_steps_and_an_outer_optimizer_learn_a_sentence_by_heart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ct, "read", lambda: SAYING * 240)
    job = JobSpec(
        **{"job": "c", "workers": 2, "servers": 2, "epochs": 5, "heartbeat_s": 20.0},
        **{"kind": "local", "local_steps": 5, "outer": "nesterov:lr=0.7,momentum=0.9"},
        options={"batch": "4", "rate": "0.005"},
    )
    lines = run_inline(job, ct.main, timeout_s=120).journal
    last = {line["worker"]: line["metrics"] for line in lines if line["what"] == "reported"}
    assert len(last) == 2
    for metrics in last.values():
        assert metrics["perplexity"] < 6
        assert metrics["accuracy"] > 0.5


def test_a_python_without_the_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(UsageError, match="which this Python lacks: install the whole standard"):
        ct.read()
