"""The allgather of two or three nodes: bandwidth, latency, and integrity of the data."""

from __future__ import annotations

import argparse
import os
import time

import torch.distributed as dist

from agent.connection.handshake import key_from_text
from agent.connection.store import SILENCE_SECONDS, PeerStore
from crds.agent_report import ProbeEnding
from crds.names import ENV_JOB_KEY
from healthcheck.probes import allgather, child, group
from healthcheck.probes.meeting import ProbeMeeting, brief
from healthcheck.probes.report import ProbeError, ProbeReport

CONNECT_POLL_SECONDS = 0.1

METRICS = {
    allgather.ALGORITHM_GBPS: "pair_algorithm_gbps",
    allgather.BUS_GBPS: "pair_bus_gbps",
    allgather.LATENCY_US: "pair_latency_us",
}


def measure(arguments: argparse.Namespace) -> ProbeReport:
    members = arguments.members.split(",")
    # Missing members are reported before this probe's own time is over.
    patience = min(arguments.join_seconds, allgather.collective_timeout(arguments.deadline))
    meeting = _join(arguments, members, patience)
    figures = group.GroupGather(meeting, arguments).run(patience)
    return ProbeReport(ProbeEnding.PASSED, figures={METRICS[name]: value for name, value in figures.items()})


def _join(arguments: argparse.Namespace, members: list[str], seconds: float) -> ProbeMeeting:
    """Join the meeting in the store of the first member's agent.

    Raises:
        ProbeError: that agent cannot be reached in time.
    """
    host, port = arguments.master_address, arguments.master_port
    key = key_from_text(os.environ.pop(ENV_JOB_KEY, ""))
    deadline = time.monotonic() + seconds
    while True:
        try:
            store = PeerStore.connect(host, port, key, _left_seconds(deadline)).under(
                f"{arguments.store_prefix}/"
            )
            store.silence_seconds = _left_seconds(deadline)
            meeting = ProbeMeeting(store, members, arguments.rank)
            store.silence_seconds = SILENCE_SECONDS
            return meeting
        except (OSError, dist.DistError) as error:
            if time.monotonic() >= deadline:
                raise ProbeError(
                    f"{members[0]}, where the group meets, cannot be reached at {host}:{port} within "
                    f"{seconds:.0f} s: {brief(error)}"
                ) from error
        time.sleep(CONNECT_POLL_SECONDS)


def _left_seconds(deadline: float) -> float:
    return max(deadline - time.monotonic(), CONNECT_POLL_SECONDS)


if __name__ == "__main__":
    parser = child.argument_parser(__doc__)
    group.add_arguments(parser)
    parser.add_argument("--members", required=True, help="names of the nodes in rank order, comma-separated")
    parser.add_argument("--rank", type=int, required=True, help="rank of this node, from 0")
    parser.add_argument("--master-address", required=True, help="address of the first member's agent")
    parser.add_argument("--master-port", type=int, required=True)
    parser.add_argument("--store-prefix", required=True, help="prefix of the group's keys in its store")
    parser.add_argument("--join-seconds", type=float, default=60.0, help="time limit for all to meet")
    child.serve(parser, measure)
