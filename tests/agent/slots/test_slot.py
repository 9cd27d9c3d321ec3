"""Slots as the processes see them that share one."""

from __future__ import annotations

import errno
import mmap
import os
import resource

import pytest

from agent.slots.pages import MFD_NOEXEC_SEAL
from agent.slots.slot import Slot


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def test_pages_that_are_mapped_cost_a_writer_no_faults() -> None:
    nbytes = 16 << 20
    made = Slot.create("pages", nbytes)
    made.whole().zero_()  # as an agent touches it
    opened, other = Slot.open(made.path), Slot.open(made.path)

    opened.map_pages()
    before = faults()
    opened.whole().fill_(1)
    mapped = faults() - before
    other.whole().fill_(2)
    assert mapped < (faults() - before - mapped) / 4
    assert mapped < nbytes / mmap.PAGESIZE / 10
    for slot in (other, opened, made):
        slot.close()


def test_what_has_no_pages_is_not_given_any_where_it_is_mapped() -> None:
    """Of a replacement's slots most have none yet: to make them would take seconds of its first step."""
    nbytes = 16 << 20
    made = Slot.create("pages", nbytes)
    made.bytes(4 << 20, 6 << 20)[:] = bytes(2 << 20)
    opened = Slot.open(made.path)
    opened.map_pages()
    assert os.stat(made.path).st_blocks * 512 < nbytes / 2  # noqa: PTH116
    before = faults()
    assert not any(opened.bytes(4 << 20, 6 << 20)[:: mmap.PAGESIZE])
    assert faults() - before < 8
    for slot in (opened, made):
        slot.close()


@pytest.mark.parametrize("kernel_has_seals", [True, False])
def test_a_slot_cannot_be_executed_where_the_kernel_can_refuse_that(
    monkeypatch: pytest.MonkeyPatch, *, kernel_has_seals: bool
) -> None:
    asked, real = [], os.memfd_create

    def create(name: str, flags: int) -> int:
        asked.append(flags)
        if flags & MFD_NOEXEC_SEAL and not kernel_has_seals:
            raise OSError(errno.EINVAL, "no such flag")
        return real(name, flags & ~MFD_NOEXEC_SEAL)

    monkeypatch.setattr(os, "memfd_create", create)
    Slot.create("slot", 1 << 16).close()
    assert asked[0] & MFD_NOEXEC_SEAL and len(asked) == (1 if kernel_has_seals else 2)
