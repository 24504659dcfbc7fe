"""The state that a simulated worker's code keeps (`worker.keep`): only its size is sent, in
parts."""

from polyrhythm.core import effects as fx
from polyrhythm.core.model import parts_of
from polyrhythm.sim.model.link import Channel
from polyrhythm.wire import messages as m


class SimKeptState:
    """The state of a worker, which it sends to the lead between two iterations of its loop."""

    __slots__ = ("asked", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        """The size of the state; 0 if the worker keeps no state."""
        self.asked: fx.CaptureState | None = None
        """The request of the lead, until it is answered."""

    def ask(self, effect: fx.CaptureState) -> bool:
        """Receive the lead's request for the state. Returns whether the state must be sent at
        once."""
        self.asked = effect
        return effect.at_once

    def send(self, channel: Channel | None) -> None:
        """Send the state if the lead has asked for it. Copying it takes no virtual time."""
        asked, self.asked = self.asked, None
        if asked is None or channel is None:
            return
        for first, end in parts_of(self.nbytes):
            part = m.Kept(
                worker=asked.worker,
                incarnation=asked.incarnation,
                number=asked.number,
                nbytes=self.nbytes,
                offset=first,
                part=end - first,
            )
            channel.send(part, end - first)


def send_restored(channel: Channel | None, effect: fx.SendKept, nbytes: int) -> None:
    """Send the state of the checkpoint to a worker that has resumed."""
    if channel is None:
        return
    for first, end in parts_of(nbytes):
        part = m.Restored(
            worker=effect.worker, incarnation=effect.incarnation, nbytes=nbytes, offset=first
        )
        channel.send(part, end - first)
