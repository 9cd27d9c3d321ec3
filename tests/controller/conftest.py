import asyncio

import pytest


@pytest.fixture
def threadless(monkeypatch):
    """What a thread would compute is computed at once."""

    async def at_once(function, *args, **kwargs):
        return function(*args, **kwargs)

    monkeypatch.setattr(asyncio, "to_thread", at_once)
