"""Copies between host and device: gigabytes (10⁹ bytes) per second each way, and whether the data is intact.

The figure is payload bytes divided by time, each byte counted once, as in NVIDIA's nvbandwidth. The host's
memory is page-locked, so that the device's DMA engines copy. On a CPU both directions are plain copies
within its memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import cycle

import torch

from crds.agent_report import ProbeEnding
from healthcheck.probes import child, devices
from healthcheck.probes.report import ProbeReport, WrongResult
from healthcheck.probes.timing import time_repeats, undisturbed

MEBIBYTES = {"cpu": 64, "cuda": 256}
PIECES = {"cpu": 64, "cuda": 1}
"""Number of pieces, timed one by one, so that some of a CPU's pieces are copied while its caches are
otherwise idle."""
MOST_REPEATS = 8
BUDGET_SECONDS = 1.0
"""Time for the repeats; each way is measured at least once, however slow the machine is."""


def measure(arguments: argparse.Namespace) -> ProbeReport:
    to_device, to_host = [], []
    for device in devices.prepare(arguments.device):  # one after the other: they may share a PCIe switch
        there, back = _copy(device, MEBIBYTES[device.type] * 2**20)
        to_device.append(there)
        to_host.append(back)
    return ProbeReport(
        ProbeEnding.PASSED,
        figures={"host_to_device_gbps": min(to_device), "device_to_host_gbps": min(to_host)},
    )


def _copy(device: torch.device, size: int) -> tuple[float, float]:
    """Return GB/s there and back for `size` bytes."""
    pinned = device.type != "cpu"
    sent = _payload(size)
    if pinned:
        sent = sent.pin_memory()
    received = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    remote = torch.empty(size, dtype=torch.uint8, device=device)

    pieces = PIECES[device.type]
    figures = [
        size / pieces / _seconds(device, target.chunk(pieces), source.chunk(pieces)) / 1e9
        for target, source in ((remote, sent), (received, remote))
    ]
    if not torch.equal(sent, received):
        changed = int((sent != received).sum())
        raise WrongResult(f"{changed} of {size} bytes changed on their way to {device} and back")
    return figures[0], figures[1]


def _seconds(device: torch.device, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> float:
    """Return the seconds for a piece, without the first copy of each."""
    ends_at = time.monotonic() + BUDGET_SECONDS
    pairs = cycle(zip(targets, sources, strict=True))

    def copy_next(_: torch.device) -> None:
        target, source = next(pairs)
        target.copy_(source, non_blocking=True)

    time_repeats([device], copy_next, len(targets))
    seconds: list[float] = []
    while not seconds or (time.monotonic() < ends_at and len(seconds) < MOST_REPEATS * len(targets)):
        seconds += time_repeats([device], copy_next, len(targets))[device]
    return undisturbed(seconds, device)


def _payload(size: int) -> torch.Tensor:
    """Return a repeated block of random bytes: generating all of them would take longer than the copies."""
    generator = torch.Generator().manual_seed(size)
    block = torch.randint(0, 256, (2**20 - 1,), dtype=torch.uint8, generator=generator)
    return block.repeat(size // len(block) + 1)[:size].contiguous()


if __name__ == "__main__":
    parser = child.argument_parser(__doc__)
    child.add_device_option(parser)
    child.serve(parser, measure)
