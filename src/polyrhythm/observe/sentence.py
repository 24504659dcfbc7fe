"""A sentence of a run's story, with its time and the workers that it is about."""

from dataclasses import dataclass

NO_WORKERS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Sentence:
    at_s: float
    text: str
    about: frozenset[int] | None = None
    """The workers that the sentence is about; None: all workers."""
    routine: bool = False
    own: bool = False
    """Whether the story of the run leaves this sentence out, so that it appears only in the story
    of one worker."""
    shown: bool = False
    """Whether the command that runs the job has already shown the sentence."""
    urgent: bool = False
    """Whether the sentence is shown while the job runs, even with `--quiet`."""

    def __str__(self) -> str:
        return f"{self.at_s:6.1f} s  {self.text}"

    def concerns(self, worker: int | None) -> bool:
        """Whether the sentence belongs to the story of this worker. None: to the story of the
        run."""
        if worker is None:
            return not self.own
        return self.about is None or worker in self.about
