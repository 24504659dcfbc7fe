"""The sentences about checkpoints in a run's story.

*The story says once that a store fails, and once that it works again. Otherwise every checkpoint
that is due would repeat the sentence. The journal keeps every failure.*
"""

from dataclasses import replace
from typing import Any

from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.sentence import NO_WORKERS, Sentence
from polyrhythm.observe.state import RunState, reason_of
from polyrhythm.observe.words import counted, size

_STORE_FAILS = "cut-unwritten"


class CheckpointTeller:
    """Turns lines of the journal about checkpoints into sentences."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._unwritten = 0
        """How many checkpoints could not be written since the last one that was made."""

    def made(self, line: dict[str, Any]) -> list[Sentence]:
        made = f"checkpoint {line['number']} of round {line['round']} is made"
        said = self._say(f"{made}: {size(line['nbytes'])} in {line['seconds']:.1f} s")
        unwritten, self._unwritten = self._unwritten, 0
        if not unwritten:
            return [replace(said, routine=True)]
        missing = f"{counted(unwritten, 'checkpoint')} that {'was' if unwritten == 1 else 'were'}"
        again = f"the store works again, after {missing} not made"
        return [replace(said, text=f"{said.text}; {again}", urgent=True)]

    def failed(self, line: dict[str, Any]) -> list[Sentence]:
        if line["reason"] == _STORE_FAILS:
            self._unwritten += 1
            if self._unwritten > 1:
                return []
        why = self._why(line)
        said = self._say(f"checkpoint {line['number']} is not made: {why}; training goes on")
        return [replace(said, urgent=True)]

    def made_without_state(self, line: dict[str, Any]) -> list[Sentence]:
        made = f"checkpoint {line['number']} is made without the state of worker.keep"
        return [replace(self._say(f"{made}: {self._why(line)}"), urgent=True)]

    def not_pruned(self, line: dict[str, Any]) -> list[Sentence]:
        said = self._say(f"older checkpoints are not deleted: {self._why(line)}")
        return [replace(said, urgent=True)]

    def resumed(self, line: dict[str, Any]) -> list[Sentence]:
        text = f"the job resumes from checkpoint {line['number']}, after round {line['round']}"
        return [self._say(text)]

    def _why(self, line: dict[str, Any]) -> str:
        return in_words(reason_of(line), self._state.name_of)

    def _say(self, text: str) -> Sentence:
        return Sentence(self._state.at_s, text, NO_WORKERS)
