"""Allgather among this node's devices."""

from __future__ import annotations

import argparse

from crds.agent_report import ProbeEnding
from healthcheck.probes import allgather, child, devices, group
from healthcheck.probes.meeting import ProbeMeeting
from healthcheck.probes.report import ProbeReport, Skipped
from healthcheck.probes.tcp_store import open_store

METRIC = "intra_node_bus_gbps"
JOIN_SECONDS = 10.0


def measure(arguments: argparse.Namespace) -> ProbeReport:
    found = devices.choose(arguments.device)
    if len(found) < 2 and arguments.cpu_ranks < 2:
        raise Skipped(f"there is one device here ({found[0].type}), so there is nobody to gather from")
    meeting = ProbeMeeting(open_store(group.LOOPBACK), ["this node"], 0)
    figures = group.GroupGather(meeting, arguments).run(JOIN_SECONDS)
    return ProbeReport(ProbeEnding.PASSED, figures={METRIC: figures[allgather.BUS_GBPS]})


if __name__ == "__main__":
    parser = child.argument_parser(__doc__)
    group.add_arguments(parser)
    child.serve(parser, measure)
