"""Run these tests with one thread of BLAS: on small matrices, several threads would wait for each
other."""

from collections.abc import Iterator

import pytest

from polyrhythm.learn.pointwise.blocks import one_blas_thread


@pytest.fixture(autouse=True, scope="session")
def _one_thread_of_blas() -> Iterator[None]:
    with one_blas_thread():
        yield
