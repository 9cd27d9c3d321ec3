"""Fetches a slot from a peer's agent into one of our own: whole and verified, or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable

from agent.slots.format import CONTROL_BYTES
from agent.slots.slot import DamagedError, Mark, Slot
from agent.slots.wire import SlotBytes, receive

CHUNK_BYTES = 8 << 20


class FetchError(Exception):
    """The peer does not have it, or does not answer."""


class DamagedCopyError(FetchError):
    """What came differs from what was summed up there: on its way, or there (`wire.have_checked`)."""


def fetch(
    address: str,
    key: bytes,
    mark: Mark,
    slot: Slot,
    *,
    goes_on: Callable[[], bool] = lambda: True,
    share: Callable[[], float] = lambda: 1.0,
) -> None:
    """Copy a peer's slot into `slot`, which stays open.

    It is verified, and the caller may seal it.

    Args:
        address: of the peer's slot server, `host:port`.
        key: the job's.
        mark: what is wanted.
        goes_on: asked now and then; once it says no, the fetch ends.
        share: of the time that it may take, asked after each chunk; below 1 it pauses then, for the sake of
            training.

    Raises:
        FetchError: it could not be had.
        DamagedCopyError: it is not what was summed up there.
    """
    slot.begin()
    try:
        with receive(address, key, mark) as source:
            if not CONTROL_BYTES <= source.nbytes <= slot.size:
                raise FetchError(f"{source.nbytes:,} bytes do not fit into a slot of {slot.size:,}")
            _receive(source, slot, goes_on, share)
        slot.verify()
    except DamagedError as error:
        raise DamagedCopyError(f"{address}: {error}") from error
    except (OSError, ValueError, TypeError, RuntimeError) as error:  # of torch, where a header makes no sense
        raise FetchError(f"{address}: {error}") from error


def _receive(source: SlotBytes, slot: Slot, goes_on: Callable[[], bool], share: Callable[[], float]) -> None:
    """Receive all bytes of a slot but its commit word.

    Raises:
        OSError, FetchError: not all came.
    """
    control = bytearray(CONTROL_BYTES)
    source.fill(memoryview(control))
    slot.take_control(control)
    for start in range(CONTROL_BYTES, source.nbytes, CHUNK_BYTES):
        if not goes_on():
            raise FetchError("it is not wanted any more")
        began_at = time.monotonic()
        with slot.bytes(start, min(start + CHUNK_BYTES, source.nbytes)) as chunk:
            source.fill(chunk)
        time.sleep((time.monotonic() - began_at) * (1 / share() - 1))
