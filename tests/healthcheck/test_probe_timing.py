"""What is taken off the time of repeated work on a CPU, and what is not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from healthcheck.probes import timing

CPU = torch.device("cpu")


class Machine:
    """Its clock and the time for which the thread was kept waiting, both in milliseconds."""

    def __init__(self, interruptions: list[int]) -> None:
        self.now = self.waited = 0
        self._interruptions = iter(interruptions)

    def interrupt(self) -> None:
        """Between any two readings, others may run."""
        for_ = next(self._interruptions, 0)
        self.now += for_
        self.waited += for_

    def perf_counter(self) -> float:
        self.interrupt()
        return self.now / 1e3


@given(st.integers(0, 1000), st.lists(st.integers(0, 100), max_size=8))
def test_interruptions_make_work_look_longer_at_most_and_never_shorter(
    work: int, interruptions: list[int]
) -> None:
    machine = Machine(interruptions)

    class Watch(timing.Stopwatch):
        def _waited(self) -> float:
            machine.interrupt()
            return machine.waited / 1e3

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing.time, "perf_counter", machine.perf_counter)
        watch = Watch()
        watch.start()
        machine.interrupt()
        machine.now += work
        took = watch.stop()
    watch.close()
    assert work / 1e3 - 1e-9 <= took <= (work + sum(interruptions)) / 1e3 + 1e-9


def test_who_else_runs_meanwhile_makes_no_work_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding: a node that trains was called a straggler."""
    machine = Machine([])
    monkeypatch.setattr(timing.time, "perf_counter", machine.perf_counter)
    monkeypatch.setattr(timing.Stopwatch, "_waited", lambda watch: machine.waited / 1e3)

    def beside_training(_: torch.device) -> None:
        machine.now += 40 + 60
        machine.waited += 60

    assert timing.time_repeats([CPU], beside_training, 3)[CPU] == pytest.approx([0.04] * 3)


@pytest.mark.real
def test_without_the_scheduler_s_statistics_the_clock_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SCHEDULER_STATISTICS", "/no/such/file")
    (seconds,) = timing.time_repeats([CPU], lambda _: None, 1)[CPU]
    assert seconds >= 0


def test_the_quickest_hundredth_counts_on_a_cpu_and_the_median_on_a_gpu() -> None:
    values = [float(number) for number in range(1, 201)]
    assert timing.undisturbed(values, CPU) == 3.0
    assert timing.undisturbed(values, torch.device("cuda")) == 100.5
