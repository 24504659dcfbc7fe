"""Says which method of a process performs each effect. The nodes of the runtime and the processes
of the simulator have methods with the same names: methods of the process (`send`), or methods of
one of its parts (`links.bind`).
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from polyrhythm.core import effects as fx
from polyrhythm.core.machine import Effect

Perform = Callable[[Any, Any], None]
"""A function that performs an effect. It is called with the process and the effect."""

SERVER_EFFECTS: Mapping[type[Effect], str] = {
    fx.Send: "send",
    fx.Bind: "links.bind",
    fx.Drop: "links.drop",
    fx.Reach: "links.reach",
    fx.Note: "note",
    fx.End: "end",
    fx.Beat: "beat",
    fx.BeatAll: "beat_all",
    fx.Build: "build",
    fx.Reroute: "reroute",
    fx.Enlist: "slices.enlist",
    fx.Unlease: "slices.unlease",
    fx.FreeSlots: "slices.free_slots",
    fx.Freeze: "slices.freeze",
    fx.SendState: "slices.send_state",
    fx.FetchState: "slices.fetch_state",
    fx.StartFold: "start_fold",
    fx.Publish: "publishing.publish",
    fx.PublishLatest: "publishing.publish_latest",
    fx.SendParameters: "send_parameters",
    fx.CopyParameters: "copy_parameters",
    fx.CreateModel: "saver.create",
    fx.CommitModel: "saver.commit",
    fx.DiscardModel: "saver.discard",
    fx.TakeCut: "checkpoints.take",
    fx.CommitCut: "checkpoints.commit",
    fx.ExpectKept: "expect_kept",
    fx.SendKept: "send_kept",
    fx.SendCode: "send_code",
    fx.SendJournal: "send_journal",
}
"""The effects of a server's machine, of the lead and of the lead's pacemaker."""

WORKER_EFFECTS: Mapping[type[Effect], str] = {
    fx.Send: "send",
    fx.Dial: "dial",
    fx.Rejoin: "rejoin",
    fx.Beat: "beat",
    fx.Note: "note",
    fx.PrepareBuffers: "prepare_buffers",
    fx.SeedSlices: "seed_slices",
    fx.PushSlices: "push_slices",
    fx.Expect: "expect",
    fx.Resume: "loop.resume",
    fx.TakeProgress: "loop.take_progress",
    fx.StopWaiting: "loop.let_go",
    fx.ContributeNow: "loop.hurry",
    fx.CaptureState: "capture_state",
    fx.ShareState: "share_state",
    fx.TakeChunks: "take_chunks",
    fx.Fail: "fail",
    fx.End: "end",
}


def performers_of(
    process: type, effects: Mapping[type[Effect], str]
) -> dict[type[Effect], Perform]:
    """The functions that perform these effects in a process of this class."""
    return {effect: _performer(process, path) for effect, path in effects.items()}


def _performer(process: type, path: str) -> Perform:
    if "." not in path:
        own: Perform = getattr(process, path)
        return own
    find = attrgetter(path)
    return lambda node, effect: find(node)(effect)
