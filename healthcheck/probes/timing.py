"""Timing of repeated work: CUDA events on a GPU, where the host only enqueues; the clock on a CPU.

On a CPU, the time in which the thread was ready but waited for others is subtracted (the run delay of the
scheduler's statistics, Documentation/scheduler/sched-stats.rst): it is not a property of the machine. This
only works for single-threaded work. The effects of a slower clock, a hypervisor or a stopped process
remain.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from statistics import median

import torch

SCHEDULER_STATISTICS = "/proc/thread-self/schedstat"

Work = Callable[[torch.device], None]


def time_repeats(
    devices: Sequence[torch.device], work: Work, repeats: int
) -> dict[torch.device, list[float]]:
    """Return the seconds of each of `repeats` runs of `work`, by device. GPUs run concurrently, as in
    training."""
    if devices[0].type == "cpu":
        with closing(Stopwatch()) as watch:
            return {device: [_watched(work, device, watch) for _ in range(repeats)] for device in devices}
    marks: dict[torch.device, list[torch.cuda.Event]] = {device: [_mark(device)] for device in devices}
    for _ in range(repeats):
        for device in devices:
            with torch.cuda.device(device):
                work(device)
            marks[device].append(_mark(device))
    for device in devices:
        torch.cuda.synchronize(device)
    return {device: _gaps(events) for device, events in marks.items()}


def wall_seconds(device: torch.device, work: Work, repeats: int) -> list[float]:
    """Measure work that involves other threads and processes, which continue while this thread waits."""
    if device.type != "cpu":
        return time_repeats([device], work, repeats)[device]
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work(device)
        seconds.append(time.perf_counter() - started)
    return seconds


def undisturbed(seconds: Sequence[float], device: torch.device) -> float:
    """Return the seconds of an undisturbed repeat: the median on a GPU, which is not shared.

    On a CPU, whose caches and bus are shared, the fastest hundredth counts.
    """
    return median(seconds) if device.type != "cpu" else sorted(seconds)[len(seconds) // 100]


def slowest_median(seconds: Mapping[torch.device, Sequence[float]]) -> float:
    """Return the median of the slowest device, which determines the node's speed."""
    return max(median(values) for values in seconds.values())


class Stopwatch:
    """Stopwatch of this thread, without the time that it waited for a CPU, if the kernel counts it.

    An interruption during a reading counts as time taken.
    """

    def __init__(self) -> None:
        try:
            self._statistics: int | None = os.open(SCHEDULER_STATISTICS, os.O_RDONLY)
        except OSError:
            self._statistics = None
        self.start()

    def start(self) -> None:
        self._started = time.perf_counter()
        self._had_waited = self._waited()

    def stop(self) -> float:
        waited = self._waited() - self._had_waited
        return time.perf_counter() - self._started - waited

    def close(self) -> None:
        if self._statistics is not None:
            os.close(self._statistics)

    def _waited(self) -> float:
        if self._statistics is None:
            return 0.0
        return int(os.pread(self._statistics, 128, 0).split()[1]) / 1e9


def _watched(work: Work, device: torch.device, watch: Stopwatch) -> float:
    watch.start()
    work(device)
    return watch.stop()


def _mark(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _gaps(events: Sequence[torch.cuda.Event]) -> list[float]:
    """Return the seconds between the events; `elapsed_time` is in milliseconds."""
    return [begin.elapsed_time(end) / 1e3 for begin, end in pairwise(events)]
