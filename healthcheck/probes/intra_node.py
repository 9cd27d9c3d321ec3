"""The allgather of this node's devices among themselves."""

from __future__ import annotations

import argparse

from crds.protocol import ProbeEnding
from healthcheck.probes import allgather, child, devices, group, meeting
from healthcheck.probes.report import Report, Skipped

METRIC = "intra_node_bus_gbps"
LOOPBACK = "127.0.0.1"
JOIN_SECONDS = 10.0


def measure(arguments: argparse.Namespace) -> Report:
    found = devices.choose(arguments.device)
    if len(found) < 2 and arguments.cpu_ranks < 2:
        raise Skipped(f"there is one device here ({found[0].type}), so there is nobody to gather from")
    met = meeting.join(["this node"], 0, meeting.Place(LOOPBACK, 0), JOIN_SECONDS)
    figures = group.GroupGather(met, arguments).run(JOIN_SECONDS)
    return Report(ProbeEnding.PASSED, figures={METRIC: figures[allgather.BUS_GBPS]})


if __name__ == "__main__":
    parser = child.argument_parser(__doc__)
    group.add_arguments(parser)
    parser.set_defaults(address=LOOPBACK)
    child.serve(parser, measure)
