"""Slots as the processes see them that share one."""

from __future__ import annotations

import mmap
import resource

from agent.memory.slot import Slot


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
