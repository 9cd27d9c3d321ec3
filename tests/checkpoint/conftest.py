from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.checkpoint.buckets import Bucket, served


@pytest.fixture(scope="session")  # fsspec keeps its clients, and these the server's address
def server() -> Iterator[str]:
    yield from served()


@pytest.fixture
def bucket(server: str) -> Bucket:
    return Bucket()
