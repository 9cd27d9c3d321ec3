from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.checkpoint.buckets import Bucket, served


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    yield from served()


@pytest.fixture
def bucket(server: str) -> Bucket:
    return Bucket()
