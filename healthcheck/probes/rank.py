"""One rank of an allgather, where a node has several: its node's probe starts one for each device."""

from __future__ import annotations

import argparse

from crds.agent_report import ProbeEnding
from healthcheck.probes import allgather, child, device_kind, devices, group
from healthcheck.probes.report import Report
from healthcheck.probes.tcp_store import visit_store


def measure(arguments: argparse.Namespace) -> Report:
    timeout_seconds = group.collective_timeout(arguments.deadline)
    store = visit_store(arguments.host, arguments.port, timeout_seconds)
    found = devices.choose(arguments.device)
    figures = allgather.measure(
        store,
        arguments.rank,
        arguments.owners.split(","),
        found[arguments.local_rank % len(found)],  # several ranks share a CPU
        timeout_seconds,
        arguments.address,
    )
    return Report(ProbeEnding.PASSED, figures=figures)


if __name__ == "__main__":
    parser = child.argument_parser(__doc__)
    device_kind.add_argument(parser)
    parser.add_argument("--address", default="")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--local-rank", type=int, required=True)
    parser.add_argument("--owners", required=True)
    child.serve(parser, measure)
