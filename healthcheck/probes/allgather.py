"""Allgather in one process group: bandwidth for large messages, latency for small ones, content verified.

With S the bytes that every rank ends up with, n the number of ranks and t the time (NVIDIA nccl-tests,
PERFORMANCE.md): algorithm bandwidth = S/t, bus bandwidth = S/t · (n − 1)/n. The latter is the load of a
link, so that groups of two and of three are comparable. t is the slowest rank's median, or, over Gloo, its
fastest hundredth: a message needs both ranks and their threads to run at once, which is rare on busy
nodes. Latency is t for 8 bytes per rank.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from crds.agent_report import ProbeEnding
from healthcheck.probes import child, devices
from healthcheck.probes.meeting import brief
from healthcheck.probes.report import ProbeError, ProbeReport
from healthcheck.probes.tcp_store import visit_store
from healthcheck.probes.timing import undisturbed, wall_seconds

ALGORITHM_GBPS, BUS_GBPS, LATENCY_US = "algorithm_gbps", "bus_gbps", "latency_us"

MEBIBYTES = {"cpu": 0.5, "cuda": 1024}
"""S: so large that bandwidth no longer grows, on InfiniBand; on a CPU so small that it is sent within one
time slice, but large enough to show most of the bandwidth of 10 Gbit/s."""
CHECKED_MEBIBYTES = {"cpu": 32, "cuda": 1024}
"""Size of the gather that verifies the content."""
INTERFACE_ENV = "GLOO_SOCKET_IFNAME"
"""Variable that selects another network than that of the node's address."""
SMALL_ELEMENTS = 2
BUDGET_SECONDS = {"cpu": 1.0, "cuda": 0.5}
LEAST_REPEATS, MOST_REPEATS = 4, {"cpu": 1000, "cuda": 50}
WARM_UP, LATENCY_REPEATS = 5, 100
FAREWELL_SECONDS = 5.0
"""Time for the members to exchange their outcomes."""
LEAVE_SECONDS_AFTER_FAILURE = 1.0
LEAST_COLLECTIVE_SECONDS = 1.0
_RANK_STRIDE = 1_000_003
"""Distance between the first elements of two ranks' blocks, so that they differ everywhere."""

# The name of the second is used before torch 2.13.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class AllGather:
    """An allgather of int32 blocks of `elements` each, in the default process group."""

    def __init__(self, elements: int, device: torch.device) -> None:
        self.device = device
        self._elements = elements
        self._block = self._expected(dist.get_rank())
        self._out = torch.zeros(elements * dist.get_world_size(), dtype=torch.int32, device=device)

    @property
    def bytes(self) -> int:
        """S, in bytes."""
        return self._out.nbytes

    def run(self, _: torch.device) -> None:
        _gather(self._out, self._block)

    def seconds(self, repeats: int) -> float:
        """Return the seconds of one undisturbed gather on the slowest rank.

        Earlier content is erased, so that `wrong_blocks` refers to these gathers.
        """
        self._out.zero_()
        mine = undisturbed(wall_seconds(self.device, self.run, repeats), self.device)
        return max(_share(mine, self.device))

    def wrong_blocks(self) -> int:
        blocks = self._out.view(-1, self._elements)
        return sum(not torch.equal(block, self._expected(rank)) for rank, block in enumerate(blocks))

    def _expected(self, rank: int) -> torch.Tensor:
        first = rank * _RANK_STRIDE
        return torch.arange(first, first + self._elements, dtype=torch.int32, device=self.device)


def collective_timeout(deadline: float) -> float:
    """Return the time limit of a collective, which leaves time before `deadline` to report a failure."""
    left_seconds = deadline - time.monotonic() - FAREWELL_SECONDS - LEAVE_SECONDS_AFTER_FAILURE
    return max(LEAST_COLLECTIVE_SECONDS, left_seconds)


def measure(
    store: Store,
    rank: int,
    owners: Sequence[str],
    device: torch.device,
    timeout_seconds: float,
    address: str = "",
) -> dict[str, float]:
    """Take part as one rank, over NCCL on a GPU, otherwise over Gloo. All ranks get the same figures.

    Args:
        store: store shared by all ranks, and used for nothing else.
        owners: name of each rank's node or device.
        timeout_seconds: time limit of Gloo for another rank; over NCCL the probe's own limit applies.
        address: address of this node, for Gloo to listen at.

    Raises ProbeError if a rank is lost, or if content changed on the way.
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=timeout_seconds)
    try:
        if backend == "gloo" and address and INTERFACE_ENV not in os.environ:
            backend = gloo_at(address)
        dist.init_process_group(backend, store=store, rank=rank, world_size=len(owners), timeout=timeout)
        return _figures(owners, device)
    except RuntimeError as error:
        raise ProbeError(f"the allgather over {backend.partition('_')[0]} broke: {brief(error)}") from error


def gloo_at(address: str) -> str:
    """Register Gloo listening at `address` as a backend, and return its name.

    By default Gloo resolves the host's name, and listens at 127.0.0.1, where no other node reaches it, if
    the name is unknown or the loopback's, as can happen in a Pod with the host's network.
    """

    def create(store: Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timeout
        return dist.ProcessGroupGloo(store, rank, size, options)

    dist.Backend.register_backend("gloo_at", create, devices="cpu")
    return "gloo_at"


def _figures(owners: Sequence[str], device: torch.device) -> dict[str, float]:
    world = len(owners)
    small = AllGather(SMALL_ELEMENTS, device)
    small.seconds(WARM_UP)
    latency = small.seconds(LATENCY_REPEATS)
    _require_intact(_large(CHECKED_MEBIBYTES, device), owners)
    large = _large(MEBIBYTES, device)
    repeats = round(BUDGET_SECONDS[device.type] / large.seconds(LEAST_REPEATS))
    seconds = large.seconds(min(max(repeats, LEAST_REPEATS), MOST_REPEATS[device.type]))
    _require_intact(large, owners)
    algorithm = large.bytes / seconds / 1e9
    return {
        ALGORITHM_GBPS: algorithm,
        BUS_GBPS: algorithm * (world - 1) / world,
        LATENCY_US: latency * 1e6,
    }


def _large(mebibytes: Mapping[str, float], device: torch.device) -> AllGather:
    return AllGather(int(mebibytes[device.type] * 2**20) // 4 // dist.get_world_size(), device)


def _require_intact(gathered: AllGather, owners: Sequence[str]) -> None:
    """Gather once more, and verify the content."""
    gathered.seconds(1)
    wrong = _share(gathered.wrong_blocks(), gathered.device)
    where = dict.fromkeys(owner for owner, blocks in zip(owners, wrong, strict=True) if blocks)
    if where:
        raise ProbeError(f"what the allgather brought had changed when it came to {', '.join(where)}")


def _share(value: float, device: torch.device) -> list[float]:
    """Return the value of every rank, on all ranks."""
    out = torch.zeros(dist.get_world_size(), dtype=torch.float64, device=device)
    _gather(out, torch.tensor([value], dtype=torch.float64, device=device))
    return [float(shared) for shared in out.tolist()]


def one_rank(arguments: argparse.Namespace) -> ProbeReport:
    """Take part as one of several ranks of a node, whose probe starts a process for each."""
    timeout_seconds = collective_timeout(arguments.deadline)
    store = visit_store(arguments.host, arguments.port, timeout_seconds)
    found = devices.choose(arguments.device)
    device = found[arguments.local_rank % len(found)]  # several ranks share a CPU
    owners = arguments.owners.split(",")
    figures = measure(store, arguments.rank, owners, device, timeout_seconds, arguments.address)
    return ProbeReport(ProbeEnding.PASSED, figures=figures)


if __name__ == "__main__":
    parser = child.argument_parser(__doc__)
    child.add_device_option(parser)
    parser.add_argument("--address", default="")
    for name in ("--host", "--owners"):
        parser.add_argument(name, required=True)
    for name in ("--port", "--rank", "--local-rank"):
        parser.add_argument(name, type=int, required=True)
    child.serve(parser, one_rank)
