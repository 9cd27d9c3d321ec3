"""Times of repeated work: CUDA events on a GPU, where the host only enqueues; the clock on a CPU.

On a CPU, the time that the thread was ready and waited while others ran is subtracted (the run delay of the
scheduler's statistics, Documentation/scheduler/sched-stats.rst): it is no property of the machine. That holds
for work that one thread does. What a slower clock, a hypervisor or a stop of the process takes stays in.
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
    """Seconds of each of `repeats` runs of `work`, by device. GPUs run at the same time, as in training."""
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
    """Measure work of which other threads and processes do a part: they go on while this thread waits."""
    if device.type != "cpu":
        return time_repeats([device], work, repeats)[device]
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work(device)
        seconds.append(time.perf_counter() - started)
    return seconds


def undisturbed(seconds: Sequence[float], device: torch.device) -> float:
    """Seconds of an undisturbed repeat: the median on a GPU, which nobody else uses.

    On a CPU, whose caches and bus others use too, the quickest hundredth counts.
    """
    return median(seconds) if device.type != "cpu" else sorted(seconds)[len(seconds) // 100]


def slowest_median(seconds: Mapping[torch.device, Sequence[float]]) -> float:
    """A node is as fast as its slowest device."""
    return max(median(values) for values in seconds.values())


class Stopwatch:
    """Seconds of this thread without those that it waited for a CPU, where the kernel counts them.

    An interruption while it is read counts as time taken.
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
    """`elapsed_time` is in milliseconds."""
    return [begin.elapsed_time(end) / 1e3 for begin, end in pairwise(events)]
