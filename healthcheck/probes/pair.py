"""The allgather of two or three nodes: bandwidth, latency, and whether what arrives is what was sent."""

from __future__ import annotations

import argparse

from crds.protocol import ProbeEnding
from healthcheck.probes import allgather, child, group, meeting
from healthcheck.probes.report import Report

METRICS = {
    allgather.ALGORITHM_GBPS: "pair_algorithm_gbps",
    allgather.BUS_GBPS: "pair_bus_gbps",
    allgather.LATENCY_US: "pair_latency_us",
}


def measure(arguments: argparse.Namespace) -> Report:
    members = arguments.members.split(",")
    # Whoever is missing is to be named before this probe's own time is up.
    patience = min(arguments.join_seconds, group.collective_timeout(arguments.deadline))
    place = meeting.Place(arguments.master_address, arguments.master_port, arguments.store_prefix)
    met = meeting.join(members, arguments.rank, place, patience)
    figures = group.GroupGather(met, arguments).run(patience)
    return Report(ProbeEnding.PASSED, figures={METRICS[name]: value for name, value in figures.items()})


if __name__ == "__main__":
    parser = child.argument_parser(__doc__)
    group.add_arguments(parser)
    parser.add_argument("--members", required=True, help="the nodes' names in rank order, with commas")
    parser.add_argument("--rank", type=int, required=True, help="this node's, from 0")
    parser.add_argument("--master-address", required=True, help="where the group meets: rank 0's")
    parser.add_argument("--master-port", type=int, required=True)
    parser.add_argument(
        "--store-prefix",
        default="",
        help="of the group's keys in a TCPStore that is there already; without it rank 0 opens one",
    )
    parser.add_argument("--join-seconds", type=float, default=60.0, help="how long to wait for the others")
    child.serve(parser, measure)
