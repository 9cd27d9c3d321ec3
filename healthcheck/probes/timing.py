"""Times of repeated work: CUDA events on a GPU, where the host only enqueues; the clock on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import median

import torch

Work = Callable[[torch.device], None]


def time_repeats(
    devices: Sequence[torch.device], work: Work, repeats: int
) -> dict[torch.device, list[float]]:
    """Seconds of each of `repeats` runs of `work`, by device. GPUs run at the same time, as in training."""
    if devices[0].type == "cpu":
        return {device: [_clocked(work, device) for _ in range(repeats)] for device in devices}
    marks: dict[torch.device, list[torch.cuda.Event]] = {device: [_mark(device)] for device in devices}
    for _ in range(repeats):
        for device in devices:
            with torch.cuda.device(device):
                work(device)
            marks[device].append(_mark(device))
    for device in devices:
        torch.cuda.synchronize(device)
    return {device: _gaps(events) for device, events in marks.items()}


def slowest_median(seconds: Mapping[torch.device, Sequence[float]]) -> float:
    """A node is as fast as its slowest device."""
    return max(median(values) for values in seconds.values())


def _clocked(work: Work, device: torch.device) -> float:
    begin = time.perf_counter()
    work(device)
    return time.perf_counter() - begin


def _mark(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _gaps(events: Sequence[torch.cuda.Event]) -> list[float]:
    """`elapsed_time` is in milliseconds."""
    return [begin.elapsed_time(end) / 1e3 for begin, end in pairwise(events)]
