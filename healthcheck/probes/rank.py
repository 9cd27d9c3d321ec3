"""One rank of an allgather, where a node has several: its node's probe starts one for each device."""

from __future__ import annotations

import argparse

from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from crds.protocol import ProbeEnding
from healthcheck.probes import allgather, child, device_kind, devices, group
from healthcheck.probes.meeting import Place
from healthcheck.probes.report import Report


def measure(arguments: argparse.Namespace) -> Report:
    store = Place(arguments.host, arguments.port, arguments.store_prefix).visit()
    found = devices.choose(arguments.device)
    figures = allgather.measure(
        PrefixStore(allgather.STORE_PREFIX, store),
        arguments.rank,
        arguments.owners.split(","),
        found[arguments.local_rank % len(found)],  # several ranks share a CPU
        group.collective_timeout(arguments.deadline),
        arguments.address,
    )
    return Report(ProbeEnding.PASSED, figures=figures)


if __name__ == "__main__":
    parser = child.argument_parser(__doc__)
    device_kind.add_argument(parser)
    parser.add_argument("--address", default="")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--store-prefix", default="")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--local-rank", type=int, required=True)
    parser.add_argument("--owners", required=True)
    child.serve(parser, measure)
