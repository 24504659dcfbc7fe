"""Messages appear on stderr unchanged."""

import pytest

from polyrhythm.observe.progress import stderr_console


def test_a_word_between_two_colons_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    stderr_console().print("the job train:fire:2 has ended")
    assert capsys.readouterr().err == "the job train:fire:2 has ended\n"
