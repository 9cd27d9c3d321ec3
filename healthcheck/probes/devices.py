"""Devices of this node on which torch computes."""

from __future__ import annotations

import torch

from healthcheck.probes.child import CPU, CUDA
from healthcheck.probes.report import ProbeUnavailable


def choose(kind: str) -> list[torch.device]:
    """Return all CUDA devices, or the CPU; `auto` is the CPU only if there is no CUDA device.

    Raises ProbeUnavailable if CUDA was requested and torch has none.
    """
    count = 0 if kind == CPU else torch.cuda.device_count()
    if count:
        return [torch.device(CUDA, index) for index in range(count)]
    if kind != CUDA:
        return [torch.device(CPU)]
    if torch.version.cuda is None and torch.version.hip is None:
        raise ProbeUnavailable(f"torch {torch.__version__} is built without CUDA, so it cannot test a GPU")
    raise ProbeUnavailable(f"torch {torch.__version__} finds no GPU that it can use")


def prepare(kind: str) -> list[torch.device]:
    """Return `choose`'s devices, with the CPU limited to one thread, for comparable figures.

    Threads that wait for each other are up to a hundred times slower on a shared machine.
    """
    found = choose(kind)
    if found[0].type == CPU:
        torch.set_num_threads(1)
    return found
