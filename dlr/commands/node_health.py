"""`dlr node-health`: dlr's verdict on one node for NVSentinel and NVRx, until SIGTERM or SIGINT.

A DaemonSet runs it (docs/cordon.md). It needs the extra `node-health`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from crds import names
from dlr.commands.errors import CommandError
from dlr.commands.options import Context, Kubeconfig, not_empty
from dlr.commands.output import LOG_FORMAT
from dlr.kube.connection import Connection, connect

Node = Annotated[
    str, typer.Option(envvar=names.ENV_NODE_NAME, callback=not_empty, help="The node; by the downward API.")
]
NVSentinel = Annotated[
    Path | None, typer.Option("--nvsentinel", help="Socket of NVSentinel's platform connector on the node.")
]
StoreOnly = Annotated[bool, typer.Option(help="NVSentinel keeps the events and acts on none.")]
NVRx = Annotated[
    Path | None,
    typer.Option("--nvrx", help="Socket to make, for ft_launcher's --ft-node-health-check-endpoint."),
]


def node_health(
    node: Node,
    nvsentinel: NVSentinel = None,
    store_only: StoreOnly = False,
    nvrx: NVRx = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Give NVSentinel and NVRx dlr's verdict on a node."""
    if nvsentinel is None and nvrx is None:
        raise CommandError("No socket is named: give one by --nvsentinel, --nvrx, or both.")
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    connection = connect(kubeconfig, context, None)
    asyncio.run(_bridge(connection, node, nvsentinel, store_only, nvrx))


async def _bridge(
    connection: Connection, node: str, nvsentinel: Path | None, store_only: bool, nvrx: Path | None
) -> None:
    from controller.client import AsyncClient
    from healthcheck.nvsentinel.bridge import Bridge, watch_node
    from healthcheck.nvsentinel.messages import ProcessingStrategy

    strategy = ProcessingStrategy.STORE_ONLY if store_only else ProcessingStrategy.EXECUTE_REMEDIATION
    bridge = Bridge(strategy)
    async with AsyncClient(connection) as client:
        work: list[Coroutine[Any, Any, None]] = [watch_node(client, node, bridge.take)]
        work += [bridge.send(str(nvsentinel))] if nvsentinel is not None else []
        work += [bridge.serve(str(nvrx))] if nvrx is not None else []
        together = asyncio.gather(*work)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, together.cancel)
        try:
            await together
        except asyncio.CancelledError:
            logging.getLogger(__name__).info("ended by a signal node=%s", node)
