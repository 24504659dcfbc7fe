"""Whether two workers' models are the same, and if not, the first thing that differs."""

from polyrhythm.wire.messages import ModelSpec


def difference(ours: ModelSpec, theirs: ModelSpec) -> str | None:
    for mine, other in zip(ours.tensors, theirs.tensors, strict=False):
        if mine.name != other.name:
            return f"it has {other.name!r} where the job has {mine.name!r}"
        if mine.shape != other.shape:
            return (
                f"{other.name!r} has shape {list(other.shape)},"
                f" in the job it has {list(mine.shape)}"
            )
        if mine != other:
            return f"{other.name!r} is {other.dtype} in group {other.group}, in the job it is" + (
                f" {mine.dtype} in group {mine.group}"
            )
    if len(ours.tensors) != len(theirs.tensors):
        return f"it has {len(theirs.tensors)} tensors, the job has {len(ours.tensors)}"
    if ours.optimizer != theirs.optimizer:
        return f"its optimizer is {theirs.optimizer}, the job's is {ours.optimizer}"
    return None
