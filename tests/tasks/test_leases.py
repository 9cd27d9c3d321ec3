"""Lines of equal length among workers with slots: nobody has lines behind its busy slots while another has free ones."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.map import Fleet

SECONDS = 100.0


@settings(max_examples=30)
@given(st.integers(1, 120), st.integers(1, 9), st.integers(1, 9))
def test_all_slots_are_in_use_as_long_as_there_are_lines(lines: int, workers: int, slots: int) -> None:
    fleet = Fleet(workers, slots, lines, SECONDS, kill_every=0)
    fleet.run()
    waves = -(-lines // (workers * slots))
    assert fleet.job[0].done == lines
    assert fleet.now < waves * SECONDS + 25
