"""`dlr up`, `dlr down`, `dlr kubeconfig`: the embedded cluster, with dlr installed in it."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import crds
import deploy
from dlr.commands.errors import CommandError
from dlr.commands.output import print_json
from localcluster.paths import Home

DEFAULT_NODES = 4
DEFAULT_PORT = 0

CONTROLLER_COMMAND = [
    *(sys.executable, "-m", "dlr.cli", "controller", "--lease-namespace=kube-system"),
    *("--listen-address=127.0.0.1", "--metrics-port=0", "--health-port=0", "--grpc-health-port=0"),
]
IDENTITY = "--identity=embedded"
"""Of the one that the supervisor keeps, and that ends when it does."""

HomeFolder = Annotated[
    Path | None, typer.Option("--home", help="The cluster's folder, instead of $DLR_HOME or ~/.dlr.")
]


class KubeconfigFormat(StrEnum):
    PATH = "path"
    YAML = "yaml"
    JSON = "json"


def up(
    nodes: Annotated[int, typer.Option(min=1, max=1000, help="Virtual nodes.")] = DEFAULT_NODES,
    cpus_per_node: Annotated[str, typer.Option(help="CPUs that a node says it has.")] = "8",
    memory_per_node: Annotated[str, typer.Option(help="Memory that a node says it has.")] = "32Gi",
    gpus_per_node: Annotated[int, typer.Option(min=0, help="nvidia.com/gpu that a node says it has.")] = 0,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The API server's port; 0 is a free one.")
    ] = DEFAULT_PORT,
    home: HomeFolder = None,
) -> None:
    """Start a Kubernetes for this machine, or bring back the one that was: no Docker, no root."""
    from localcluster import supervisor

    place = _home(home)
    try:
        place.create()
        controller = controller_command(place)
    except OSError as error:
        raise CommandError(
            f"The folder {place.root} cannot be used for the cluster: {error.strerror}; "
            "choose another with DLR_HOME."
        ) from error
    try:
        supervisor.up(
            place,
            nodes=nodes,
            cpus_per_node=cpus_per_node,
            memory_per_node=memory_per_node,
            gpus_per_node=gpus_per_node,
            port=port,
            manifests=[*crds.manifests(), *deploy.worker_documents()],
            addons=[supervisor.Addon("controller", [*controller, IDENTITY])],
        )
    except supervisor.ClusterError as error:
        raise CommandError(f"{error}.") from error
    print(
        f"The cluster is up: {nodes} virtual nodes and the dlr controller. Its files are in {place.root}.\n\n"
        f"  export KUBECONFIG={place.kubeconfig}\n"
        "  kubectl apply -f examples/digits/elasticjob.yaml     # or: dlr job submit -f …\n"
        "  dlr job status digits --watch\n"
        "  dlr down                                             # ends it; the next `dlr up` brings it back"
    )


def controller_command(place: Home) -> list[str]:
    """How a controller of this cluster is started, once its agent is where Pods get it from.

    Containers share this host's files, so the agent's mount point has to be a folder that is there.
    """
    from dlr.bundle import agent as agent_bundle
    from localcluster.kubelet.container import Isolation, detect_isolation

    if detect_isolation(place.root) is Isolation.NONE:  # there are no mounts; Pods use the dlr installed here
        return [*CONTROLLER_COMMAND, "--no-inject-agent"]
    files, mount_point = place.root / "agent", place.root / "dlr"
    agent_bundle.build(files)
    mount_point.mkdir(exist_ok=True)
    return [*CONTROLLER_COMMAND, f"--agent-path={files}", f"--agent-mount-path={mount_point}"]


def down(home: HomeFolder = None) -> None:
    """Stop the embedded cluster and every process in it; its objects stay for the next `dlr up`."""
    from localcluster import supervisor

    place = _home(home)
    try:
        supervisor.down(place)
    except supervisor.ClusterError as error:
        raise CommandError(f"{error}.") from error
    print(f"The cluster in {place.root} is down.")


def kubeconfig(
    output: Annotated[
        KubeconfigFormat, typer.Option("--output", "-o", help="Its path, or what is in it.")
    ] = KubeconfigFormat.PATH,
    home: HomeFolder = None,
) -> None:
    """Print where the embedded cluster's kubeconfig is: export KUBECONFIG=$(dlr kubeconfig)"""
    import yaml

    path = _home(home).kubeconfig
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        raise CommandError(
            f"There is no embedded cluster in {path.parent}; start one with `dlr up`."
        ) from error
    except OSError as error:
        raise CommandError(f"The kubeconfig {path} cannot be read: {error.strerror}.") from error
    if output is KubeconfigFormat.PATH:
        print(path)
    elif output is KubeconfigFormat.YAML:
        sys.stdout.write(text)
    else:
        print_json(yaml.safe_load(text))


def _home(folder: Path | None) -> Home:
    return Home(folder.expanduser().absolute()) if folder else Home.default()
