"""One message of every type, in which no field has its default value, and a function that feeds
bytes to a decoder."""

from collections.abc import Iterable

from polyrhythm.wire import messages as m
from polyrhythm.wire.frames import Decoder
from polyrhythm.wire.messages.reasons import DONE, Reason, refused

IDENTITY = {
    "term": 3,
    "view": 4,
    "routing": 5,
    "worker": 6,
    "incarnation": 7,
    "sequence": 8,
    "round": 9,
    "slice": 10,
    "server": 12,
}
ADDRESS = m.Address("10.0.0.1", 4711, "polyrhythm-x", "boot/1/0")
SPEC = m.ModelSpec(
    (
        m.TensorSpec("weight", (3, 4), "float32", 0, (4, 1)),
        m.TensorSpec("count", (), "int64", -1, ()),
    ),
    m.OptimizerSpec("SGD", ({"lr": 0.1, "nesterov": True, "betas": [0.9, 0.99]},)),
    (m.StateName("weight", 0), m.StateName("tied", 0), m.StateName("count", 1)),
)
ROUTES = (m.Route(0, (1, 2)), m.Route(1, (0,), (2,), 4))
SERVERS = (m.ServerSpec(0, ADDRESS, 1), m.ServerSpec(1, ADDRESS, 3))
ROWS = (m.Row(1, 2, 3), m.Row(4, 5, 6))
STAMP = m.Stamp(1, 2, 3)
JOB = m.JobSpec(
    job="job-1",
    workers=3,
    timer="5s",
    rounds=7,
    options={"size": "4MB"},
    async_scale="none",
    heartbeat_s=0.25,
    respawn=True,
    replicas=2,
)
PAGE = m.JournalPage(run_dir="/runs/run", job=JOB, now_s=1.5, lines=b"{}\n", last=True)


def messages() -> list[m.Message]:
    return [
        m.WorkerHello(
            **IDENTITY, name="w", job="j", identity="i", protocol=9, digests=(1, 0), nonce=b"n"
        ),
        m.ServerHello(
            **IDENTITY, name="s", job="j", address=ADDRESS, identity="i", digests=(2,), nonce=b"o"
        ),
        m.Challenge(**IDENTITY, nonce=bytes(range(32)), name="s0", job="j", proof=b"p" * 32),
        m.Proof(**IDENTITY, proof=b"q" * 32),
        m.HelloReply(**IDENTITY, name="s0", digest=1, address=ADDRESS, protocol=2),
        m.Refusal(**IDENTITY, reason=refused("no: ünïcode")),
        m.SegmentOffered(**IDENTITY, segment=1, nbytes=2**40),
        m.SegmentWithdrawn(**IDENTITY, segment=3),
        m.Admitted(**IDENTITY, job=JOB, servers=SERVERS),
        m.ModelSize(**IDENTITY, nbytes=5),
        m.Divided(**IDENTITY, division=m.Division(2, 1024, 4)),
        m.Attach(**IDENTITY, spec=SPEC),
        m.Routing(**IDENTITY, routes=ROUTES, seed=True, servers=SERVERS),
        m.Enrol(**IDENTITY, points=1000, batch=8, groups=(250, 600)),
        m.Leased(
            **IDENTITY,
            points=10,
            seed=2,
            chunks=(m.ChunkLease(0, 0, 5, 1, 2),),
            epochs=3,
            number=4,
            sends=(m.ChunkSend(1, 2, 5, 10, 1, 2, "worker-1", m.Address("h", 1, "", "")),),
            copies=(3,),
            arriving=(4,),
            delivery=5,
            earlier=3,
        ),
        m.Delivered(**IDENTITY, chunk=1, number=2, nbytes=3, fault=Reason("move-no-memory")),
        m.ChunkPart(
            **IDENTITY,
            chunk=1,
            number=2,
            points=10,
            offset=4,
            count=6,
            structure="0",
            columns=(m.ColumnSpec("tensor", "float32", (2,)),),
        ),
        m.Report(**IDENTITY, metrics={"accuracy": 0.5}, evaluated=True),
        m.Leave(**IDENTITY, reason=DONE),
        m.Evicted(**IDENTITY, reason=Reason("silent-for", {"silent_s": 6.0})),
        m.Stop(**IDENTITY, reason=refused("goal"), failed=True),
        m.Contribution(**IDENTITY, slices=4, weight=11.5, rate=0.25),
        m.Trailer(
            **IDENTITY,
            report=m.ContributionReport(
                weight=11.5,
                objective=0.5,
                compute_ns=1,
                wait_ns=2,
                transfer_ns=3,
                progress=(m.ChunkProgress(1, 2, 3),),
                lease=4,
                steps=6,
                probe=0.25,
                probe_points=7,
                probe_ns=8,
            ),
        ),
        m.Abstained(**IDENTITY, lease=5),
        m.Arrived(**IDENTITY),
        m.Fold(**IDENTITY, readers=(0, 1), members=(m.MemberSpec(0, 1, "w"),), last=True),
        m.Folded(**IDENTITY, weight=11.5),
        m.Release(
            torn=True,
            whole_only=True,
            **IDENTITY,
            pushed=False,
            stop=True,
            steps=3,
            interval_ns=4,
            probe=(1, 2),
            progress=m.Progress(1000, 300, 0.5, 12.5),
            rank=2,
            whole=True,
        ),
        m.Pause(**IDENTITY),
        m.Asking(**IDENTITY),
        m.Progressed(**IDENTITY, progress=m.Progress(1000, 300, 0.5, 12.5), rank=2),
        m.Acknowledged(**IDENTITY),
        m.Pull(**IDENTITY, whole=True),
        m.Parameters(**IDENTITY, slot=2, holds=(3, 4), steps=(m.SliceStep(2.0),), early=True),
        m.Pulled(**IDENTITY),
        m.Introduced(**IDENTITY),
        m.Dismissed(**IDENTITY),
        m.Drain(**IDENTITY),
        m.RatesMeasured(**IDENTITY, received=m.Received(9, (m.Burst("w2", 3, 5, 40_000),))),
        m.Stays(**IDENTITY, reason=Reason("ending-already")),
        m.Place(
            **IDENTITY,
            spec=SPEC,
            routes=ROUTES,
            servers=SERVERS,
            members=(m.MemberSpec(0, 1, "w"),),
            fresh=False,
        ),
        m.Placed(**IDENTITY, rows=ROWS),
        m.Seed(**IDENTITY),
        m.Seeded(**IDENTITY),
        m.Alive(**IDENTITY),
        m.CaughtUp(**IDENTITY, peer=2),
        m.Unreachable(**IDENTITY, peer="w2", peer_incarnation=3, detail="it broke", silent_s=3.5),
        m.Copy(**IDENTITY, stamp=STAMP, step=m.SliceStep(2.0, 0.5, 7, 0.25), rows=ROWS),
        m.Copied(**IDENTITY, rows=ROWS),
        m.Fetch(**IDENTITY, held=(STAMP,)),
        m.State(
            **IDENTITY,
            slices=2,
            stamp=STAMP,
            rows=ROWS,
            name="momentum",
            dtype="float32",
            shape=(3, 4),
            part=1,
            parts=2,
        ),
        m.Adopted(**IDENTITY, rows=ROWS),
        m.Share(**IDENTITY, done=True),
        m.Shared(**IDENTITY, name="step", dtype="float32", shape=(3,), part=1, parts=2),
        m.Given(**IDENTITY, name="step", dtype="float32", shape=(3,), part=1, parts=2),
        m.Holding(**IDENTITY),
        m.OperatorHello(**IDENTITY, name="o", job="j", protocol=9, digests=(1,), nonce=b"n"),
        m.OperatorRequest(**IDENTITY, what="stop", at_once=True, at=5),
        m.OperatorAnswer(
            **IDENTITY, reason=refused("no"), done=True, failed=True, source=b"s", page=PAGE
        ),
        m.Collect(**IDENTITY, number=2, slices=(0, 3), copied=True),
        m.Capture(**IDENTITY, number=2),
        m.Collected(**IDENTITY, number=2),
        m.Cut(**IDENTITY, number=4),
        m.CutTaken(**IDENTITY, number=4, torn=1),
        m.CutWritten(
            **IDENTITY, number=4, file=m.FileEntry("slices-0", 7, "d", (1, 2)), fault="full"
        ),
        m.Withhold(**IDENTITY, number=4),
        m.Withheld(**IDENTITY, number=4),
        m.Proceed(**IDENTITY, number=4),
        m.Keeping(**IDENTITY, restore=True),
        m.Keep(**IDENTITY, number=4),
        m.Appointed(**IDENTITY),
        m.Kept(**IDENTITY, number=4, nbytes=9, offset=3, part=6, fault="odd"),
        m.Restored(**IDENTITY, nbytes=9, offset=3, fault="gone"),
    ]


def joined(buffers: Iterable[object]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)  # type: ignore[call-overload]


def feed(
    decoder: Decoder, data: bytes, chunks: Iterable[int] = ()
) -> list[tuple[m.Message, bytes | None, int, int]]:
    """Feed `data` to a decoder in pieces of these sizes, and then the rest. Return all frames."""
    frames = []
    sizes = iter(chunks)
    at = 0
    while at < len(data):
        target = decoder.target()
        assert len(target), "the decoder has no room for the next byte"
        size = max(1, min(next(sizes, len(data)), len(target), len(data) - at))
        target[:size] = data[at : at + size]
        decoder.on_landed(size)
        at += size
        while (frame := decoder.next()) is not None:
            payload = None if frame.payload is None else bytes(frame.payload)
            frames.append((frame.message, payload, frame.flags, frame.timestamp_ns))
    return frames
