"""Allgather of a group of nodes, or of one node's devices: agree on the ranks, measure, exchange outcomes.

It uses NCCL with one rank per GPU if every node of the group has GPUs, otherwise Gloo.
"""

from __future__ import annotations

import argparse
import time
from itertools import accumulate

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from healthcheck.probes import allgather, child, devices
from healthcheck.probes.allgather import FAREWELL_SECONDS, LEAVE_SECONDS_AFTER_FAILURE, collective_timeout
from healthcheck.probes.child import CPU, CUDA
from healthcheck.probes.meeting import ProbeMeeting, brief
from healthcheck.probes.report import BLAMING, ProbeError
from healthcheck.probes.runner import Probe, run_together
from healthcheck.probes.tcp_store import open_store, visit_store

LOOPBACK = "127.0.0.1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    child.add_device_option(parser)
    parser.add_argument("--address", default=LOOPBACK, help="address of this node, to listen at")
    parser.add_argument("--cpu-ranks", type=int, default=1, help="ranks of this node over Gloo")


class GroupGather:
    """Part of this node in the allgather of a meeting's members."""

    def __init__(self, meeting: ProbeMeeting, arguments: argparse.Namespace) -> None:
        self._meeting = meeting
        self._address: str = arguments.address
        self._cpu_ranks: int = arguments.cpu_ranks
        self._deadline: float = arguments.deadline
        on_gpu = devices.choose(arguments.device)[0].type == CUDA and dist.is_nccl_available()
        self._gpus = len(devices.choose(CUDA)) if on_gpu else 0
        self._store: TCPStore | None = None
        """Store of the group's collectives, at its first member."""
        self._host, self._port = "", 0
        """Address of that store."""

    def run(self, join_seconds: float) -> dict[str, float]:
        """Return the group's figures, named as in `allgather`; they are the same on every node.

        Raises ProbeError with the error, from here or from another node of the group.
        """
        meeting = self._meeting
        patience = LEAVE_SECONDS_AFTER_FAILURE
        try:
            own = {"gpus": self._gpus, "cpu": self._cpu_ranks, "store": self._open_store()}
            announced = meeting.exchange("ranks", own, join_seconds)
            self._host, self._port = announced[0]["store"]
            kind = CUDA if all(node["gpus"] for node in announced) else CPU
            ranks = [node["gpus"] if kind == CUDA else node["cpu"] for node in announced]
            figures = self._compare_notes(kind, ranks)
            patience = FAREWELL_SECONDS
            return figures
        finally:
            meeting.leave(patience)

    def _open_store(self) -> list[str | int]:
        """Open the store of the group's collectives, as the first member, and return its address."""
        if self._meeting.rank != 0:
            return []
        try:
            self._store = open_store(self._address)
        except (OSError, dist.DistError) as error:
            raise ProbeError(f"cannot listen on {self._address}: {brief(error)}") from error
        return [self._address, self._store.port]

    def _compare_notes(self, kind: str, ranks: list[int]) -> dict[str, float]:
        """Gather with this many ranks per node; pass only if all nodes report a pass."""
        meeting = self._meeting
        try:
            figures = self._gather(kind, ranks)
        except ProbeError as error:
            meeting.send("failure", str(error))
            raise
        # A process may not get to run for longer than a farewell takes on a busy machine.
        patience = max(FAREWELL_SECONDS, collective_timeout(self._deadline))
        reasons = meeting.exchange("failure", "", patience)
        for member, reason in zip(meeting.members, reasons, strict=True):
            if reason:
                raise ProbeError(f"{member} says: {reason}")
        return figures

    def _gather(self, kind: str, ranks: list[int]) -> dict[str, float]:
        meeting = self._meeting
        first = list(accumulate(ranks, initial=0))[meeting.rank]
        alone = len(ranks) == 1
        owners = [
            f"{kind}:{local}" if alone else member
            for member, count in zip(meeting.members, ranks, strict=True)
            for local in range(count)
        ]
        if ranks[meeting.rank] > 1:
            return self._gather_in_processes(kind, first, owners, ranks[meeting.rank])
        timeout_seconds = collective_timeout(self._deadline)
        device = devices.choose(kind)[0]
        try:
            store = visit_store(self._host, self._port, timeout_seconds)
        except dist.DistError as error:
            where = f"{meeting.members[0]} at {self._host}:{self._port}"
            raise ProbeError(f"cannot join {where}: {brief(error)}") from error
        return allgather.measure(store, first, owners, device, timeout_seconds, self._address)

    def _gather_in_processes(self, kind: str, first: int, owners: list[str], count: int) -> dict[str, float]:
        """Gather with one process per rank, for the ranks from `first` on."""
        shared = (
            f"--device={kind}",
            f"--address={self._address}",
            f"--host={self._host}",
            f"--port={self._port}",
            f"--owners={','.join(owners)}",
        )
        # It ends before this probe does, so that a hanging rank can be reported.
        timeout_seconds = self._deadline - time.monotonic() - FAREWELL_SECONDS
        results = run_together(
            [
                Probe(
                    "allgather",
                    (*shared, f"--rank={first + local}", f"--local-rank={local}"),
                    timeout_seconds,
                )
                for local in range(count)
            ]
        )
        bad = [(local, result) for local, result in enumerate(results) if result.ending in BLAMING]
        if bad:
            local, result = min(bad, key=lambda found: found[1].seconds)  # the first one to fail
            raise ProbeError(f"{kind}:{local}: {result.reason}")
        return dict(results[0].figures)
