"""The manifest of a checkpoint: the object that lists its files. The checkpoint exists if the
manifest does.

The manifest is written last, and only if there is none with the same number: if two jobs write a
checkpoint with the same number, only one of them succeeds. Its outer form (`format`, `digest`,
`manifest`) is the same in all versions of polyrhythm, so that a manifest of another version is not
taken for a damaged one.
"""

import re

import msgspec

from polyrhythm.core.model import nonsense
from polyrhythm.errors import DamagedCheckpoint, StoreError
from polyrhythm.store.tensor_file import digest_of
from polyrhythm.wire.messages import FileEntry, JobSpec, ModelSpec

FORMAT = 2
"""The version of the format. It is increased when older versions of polyrhythm would read a new
checkpoint wrongly."""


_NAME = re.compile(r"[a-z0-9-]+\.[a-z]+")
"""The pattern of file names. It excludes slashes, so that a manifest cannot name an object outside
its checkpoint."""


class OtherVersion(StoreError):
    """A checkpoint was written by another version of polyrhythm, in a format that this version
    cannot read."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a checkpoint."""

    number: int
    round: int
    """With rounds, the last round that was folded before the checkpoint. Without rounds, the number
    of contributions that the checkpoint contains."""
    made_s: float
    """When the checkpoint was made, in seconds since 1970."""
    version: str
    """The version of polyrhythm that wrote the checkpoint."""
    model: ModelSpec
    """The model, and how it is cut into slices."""
    job: JobSpec
    files: tuple[FileEntry, ...]
    """The files of slices, with the numbers of the slices in each."""
    record: FileEntry
    """The file with the lead's state, such as the progress in the data."""
    kept: FileEntry | None = None
    """The file with the state that `worker.keep` added, if any."""


class _Envelope(msgspec.Struct, frozen=True):
    format: int
    digest: str
    manifest: msgspec.Raw


def encode_manifest(manifest: Manifest) -> bytes:
    raw = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Envelope(FORMAT, _digest(FORMAT, raw), msgspec.Raw(raw)))


def decode_manifest(data: bytes | memoryview, url: str) -> Manifest:
    """Decode and verify a manifest. `url`: its address, for error messages."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise DamagedCheckpoint(f"{url} is damaged: it is not a manifest") from None
    raw = bytes(envelope.manifest)
    if _digest(envelope.format, raw) != envelope.digest:
        raise DamagedCheckpoint(f"{url} is damaged: its digest differs")
    if envelope.format != FORMAT:
        raise OtherVersion(
            f"{url} was written by another version of polyrhythm (checkpoint format"
            f" {envelope.format}; this version reads format {FORMAT})"
        )
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except msgspec.MsgspecError as error:
        raise OtherVersion(f"{url} was written by another version of polyrhythm: {error}") from None
    if (fault := _fault(manifest)) is not None:
        raise DamagedCheckpoint(f"{url} is damaged: {fault}")
    return manifest


def _fault(manifest: Manifest) -> str | None:
    """Describe the first impossible value; None if there is none. The digest shows that the
    manifest is undamaged, but not that polyrhythm wrote it."""
    if (fault := nonsense(manifest.model)) is not None:
        return f"its model is impossible: {fault}"
    if manifest.model.division is None:
        return "it does not say how its model is cut into slices"
    for file in (*manifest.files, manifest.record, *([manifest.kept] if manifest.kept else [])):
        if not _NAME.fullmatch(file.name):
            return f"it names a file {file.name!r}, which is not a valid file name"
    return None


def _digest(version: int, raw: bytes) -> str:
    return digest_of(b"%d " % version + raw)
