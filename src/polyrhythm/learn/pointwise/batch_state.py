"""Some points of a point-wise algorithm as arrays, to be sent to another worker."""

from typing import Any

import numpy as np

from polyrhythm.learn.pointwise.algorithm import Batch


def state_of(batch: Batch) -> dict[str, Any]:
    """The arrays of these points. A sparse matrix has three arrays."""
    state: dict[str, Any] = {}
    if hasattr(batch.x, "tocsr"):
        x = batch.x.tocsr()
        state |= {"data": x.data, "indices": x.indices, "indptr": x.indptr, "width": x.shape[1]}
    else:
        state["x"] = np.asarray(batch.x)
    if batch.y is not None:
        state["y"] = batch.y
    if batch.weight is not None:
        state["weight"] = batch.weight
    return state


def batch_of(state: dict[str, Any]) -> Batch:
    """The points with these arrays."""
    if "x" in state:
        x = state["x"]
    else:
        from scipy import sparse

        shape = (len(state["indptr"]) - 1, state["width"])
        x = sparse.csr_matrix((state["data"], state["indices"], state["indptr"]), shape=shape)
    return Batch(x, state.get("y"), state.get("weight"))
