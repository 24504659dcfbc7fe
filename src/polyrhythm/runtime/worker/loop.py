"""The user's loop as the worker's machine sees it: the orders of the machine to the loop, and how
the loop waits for the machine.

The loop waits on its own thread, and reads the links while it waits.
"""

from collections.abc import Callable

from polyrhythm.core import effects as fx
from polyrhythm.errors import JobFailed, LeadLost, PolyrhythmError, Refused, ToldToLeave
from polyrhythm.observe.reasons import in_words
from polyrhythm.runtime.net.worker_links import WorkerLinks
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import NEVER_ATTACHED


class UserLoop:
    def __init__(self, name: str, links: WorkerLinks, meanwhile: Callable[[], bool]) -> None:
        """`name`: the name of the worker. `meanwhile` is called repeatedly while the loop waits. It
        returns whether there is more to do at once."""
        self.stopped = False
        """Whether the job has ended."""
        self.asked = False
        """Whether the worker was told to leave."""
        self.done = NEVER_ATTACHED
        """Why the worker leaves if its program ends without an error."""
        self.version = -1
        self.lease: m.Leased | None = None
        self.terms = fx.Resume(-1, stop=False)
        """The last effect `Resume`: it says when to contribute next."""
        self.progress, self.rank = m.Progress(), -1
        """The progress of the job and the rank of this worker, as last reported by the lead."""
        self.progress_read = False
        """Whether the user's code has asked for the progress of the job."""
        self.hurried = False
        """Whether the interval of the round is over. Then the worker must contribute now."""
        self.resumed = False
        """Whether the loop may continue with a version that it has not used yet."""
        self._released = False
        """Whether the machine has ordered the worker to stop waiting for a version."""
        self._failure: PolyrhythmError | None = None
        self._name = name
        self._links = links
        self._meanwhile = meanwhile

    # -- effects of the machine ----------------------------------------------------------------

    def resume(self, effect: fx.Resume) -> None:
        self.version = effect.round
        self.terms = effect
        self.progress, self.rank = effect.progress, effect.rank
        self.hurried = False
        self.stopped = self.stopped or effect.stop
        self.resumed = True

    def take_progress(self, effect: fx.TakeProgress) -> None:
        self.progress, self.rank = effect.progress, effect.rank

    def let_go(self, effect: fx.StopWaiting) -> None:
        self._released = True
        self.stopped = self.stopped or effect.stop

    def hurry(self, effect: fx.ContributeNow) -> None:
        self.hurried = True

    def take_lease(self, effect: fx.TakeChunks) -> None:
        self.lease = effect.lease

    def fail(self, effect: fx.Fail) -> None:
        words, code = in_words(effect.reason), effect.reason.code
        if code == "lead-lost":
            self._failure = LeadLost(words)
            # end the links: the user's thread may be waiting for the rest of a frame
            self._links.shut()
        else:
            self._failure = JobFailed(words) if effect.stopped else Refused(words, code)

    # -- waiting -------------------------------------------------------------------------------

    def begin(self, done: Callable[[], bool]) -> None:
        """Wait until `done` is true, before the loop begins. Raises ToldToLeave if the worker is
        told to leave first."""
        self._wait(lambda: done() or self.asked or self._released)
        if not done():
            raise ToldToLeave(f"{self._name} was told to leave before it had begun")

    def await_version(self) -> None:
        """Wait until the loop may continue with a new version, or need not wait any more."""
        self._wait(lambda: self.resumed or self._released)

    def look(self) -> None:
        """Handle the messages that have arrived, without waiting."""
        self._raise_failure()
        self._links.poll(0.0)

    def _wait(self, done: Callable[[], bool]) -> None:
        while not done():
            self._raise_failure()
            self._links.poll(0.0 if self._meanwhile() else 1.0)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
