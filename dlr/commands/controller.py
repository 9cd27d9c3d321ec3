"""`dlr controller`: the manager with all reconcilers, until SIGTERM or SIGINT.

The controller's image has the dependencies of this command only.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crds import names
from dlr.commands.errors import CommandError
from dlr.commands.options import Context, Kubeconfig, namespace_name, not_empty
from dlr.commands.output import LOG_FORMAT
from dlr.kube.connection import Connection, connect
from reconcilers.observed.options import (
    DEFAULT_AGENT_IMAGE,
    DEFAULT_AGENT_PATH,
    DEFAULT_CHECK_IMAGE,
    DEFAULT_LIMIT_PERCENT,
    DEFAULT_MOUNT_PATH,
    DEFAULT_WORKERS_PER_NAMESPACE,
    AgentSource,
    CordonMode,
    CordonOptions,
    PodOptions,
)

if TYPE_CHECKING:
    from controller.manager import Manager, ManagerOptions

PORT: dict[str, Any] = {"min": 0, "max": 65_535}


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", callback=namespace_name, help="Look after this namespace only."),
]
LeaderElect = Annotated[
    bool, typer.Option(help="Act only while holding the Lease dlr-controller; several may then stand by.")
]
LeaseNamespace = Annotated[
    str | None,
    typer.Option(
        callback=namespace_name,
        help="Where that Lease is. Default: the namespace of the kubeconfig's context or of the Pod, or, "
        "where the account may not keep it there, the account's own.",
    ),
]
Identity = Annotated[
    str | None,
    typer.Option(
        help="The name under which it holds that Lease. Default: another for each start. With one that "
        "stays it leads again at once after a crash: for a supervisor that knows that nothing of the "
        "process before is still under way."
    ),
]
ListenAddress = Annotated[
    str,
    typer.Option(
        callback=not_empty,
        help="Where the three ports below listen; :: is every address, those of IPv4 too.",
    ),
]
MetricsPort = Annotated[int, typer.Option(**PORT, help="Prometheus metrics; 0 is any free port.")]
MetricsAuth = Annotated[
    bool,
    typer.Option(
        help="Show metrics only to the bearer of a token that may get /metrics, by TokenReview and "
        "SubjectAccessReview (the ClusterRole dlr-metrics-reader)."
    ),
]
HealthPort = Annotated[int, typer.Option(**PORT, help="/healthz and /readyz; 0 is any free port.")]
Cordon = Annotated[
    CordonMode, typer.Option(help="Cordon nodes found faulty, or only report what would be done.")
]
CordonLimit = Annotated[
    int,
    typer.Option(min=1, max=100, help="Percent of all nodes that dlr may cordon; one always."),
]
CheckImage = Annotated[
    str, typer.Option(help="The image of Pods that check nodes, for NodeChecks without a template.")
]
InjectAgent = Annotated[
    bool, typer.Option(help="Bring the agent into Pods; without it, training images have to have dlr.")
]
AgentImage = Annotated[
    str, typer.Option(help="The image with the agent, which Pods mount, or an init container copies.")
]
AgentPath = Annotated[str, typer.Option(help="Where in that image the agent lies, as `dlr bundle` wrote it.")]
AgentMountPath = Annotated[str, typer.Option(help="Where training containers see it.")]
WorkersPerNamespace = Annotated[
    int,
    typer.Option(
        min=1,
        help="ElasticWorkers in one namespace beyond which no more are made; each takes 20 KB here.",
    ),
]
Queues = Annotated[
    bool,
    typer.Option("--kueue/--no-kueue", help="Let jobs with a label of Kueue's wait in its queues."),
]
LogLevelOption = Annotated[LogLevel, typer.Option(help="The lowest level that is logged.")]


def controller(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    leader_elect: LeaderElect = True,
    lease_namespace: LeaseNamespace = None,
    identity: Identity = None,
    listen_address: ListenAddress = "::",
    metrics_port: MetricsPort = 8080,
    metrics_auth: MetricsAuth = True,
    health_port: HealthPort = 8081,
    cordon: Cordon = CordonMode.ENFORCE,
    cordon_limit: CordonLimit = DEFAULT_LIMIT_PERCENT,
    check_image: CheckImage = DEFAULT_CHECK_IMAGE,
    inject_agent: InjectAgent = True,
    agent_image: AgentImage = DEFAULT_AGENT_IMAGE,
    agent_path: AgentPath = DEFAULT_AGENT_PATH,
    agent_mount_path: AgentMountPath = DEFAULT_MOUNT_PATH,
    workers_per_namespace: WorkersPerNamespace = DEFAULT_WORKERS_PER_NAMESPACE,
    kueue: Queues = False,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run the controller."""
    from controller.connection import POD_SOURCE
    from controller.errors import ApiError
    from controller.leader.elector import LeadershipLost
    from controller.manager import ManagerOptions
    from controller.serving.servers import Listen, ServeError
    from reconcilers.setup import WATCHED_BY_LABEL
    from reconcilers.shapes import memory_units

    logging.basicConfig(level=log_level.upper(), format=LOG_FORMAT)
    connection = connect(kubeconfig, context, None)
    options = ManagerOptions(
        namespace=namespace,
        label_selectors=WATCHED_BY_LABEL,
        memory_units=memory_units(workers_per_namespace),
        listen=Listen(address=listen_address, metrics_port=metrics_port, health_port=health_port),
        metrics_auth=metrics_auth,
        leader_election=leader_elect,
        lease_namespace=lease_namespace,
        identity=identity,
    )
    agent = AgentSource(agent_image, agent_path, agent_mount_path) if inject_agent else None
    own_namespace = connection.namespace if connection.source == POD_SOURCE else ""
    pods = PodOptions(check_image, agent, workers_per_namespace, controller_namespace=own_namespace)

    def add_reconcilers(manager: Manager) -> None:
        from reconcilers.setup import add_all

        own_namespace = manager.options.lease_namespace or names.SYSTEM_NAMESPACE
        add_all(manager, CordonOptions(cordon, cordon_limit, own_namespace), pods, queues=kueue)

    try:
        asyncio.run(_manage(connection, options, add_reconcilers))
    except (ApiError, ServeError, LeadershipLost) as error:
        raise CommandError(f"The controller has ended: {error}") from error


async def _manage(
    connection: Connection,
    options: ManagerOptions,
    add_reconcilers: Callable[[Manager], None],
) -> None:
    from controller.client import AsyncClient
    from controller.garbage import keep_pauses_short
    from controller.leader.container_end import announce, unique_identity
    from controller.leader.lease_namespace import find_lease_namespace
    from controller.manager import Manager

    keep_pauses_short()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncClient(connection) as client:
        if options.leader_election and options.lease_namespace is None:
            options = replace(options, lease_namespace=await find_lease_namespace(client, options.name))
        if options.leader_election and options.identity is None:
            identity = unique_identity()
            announce(identity)
            options = replace(options, identity=identity)
        manager = Manager(client, options)
        add_reconcilers(manager)
        await manager.run(stop)
