"""`dlr up`, `dlr down`, `dlr kubeconfig`: the embedded cluster, with dlr installed in it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

import crds
from crds import names
from dlr.commands import interrupts
from dlr.commands.errors import CommandError
from dlr.commands.options import not_empty
from dlr.kube.errors import UsageError
from dlr.kube.waiting import waiting_for
from localcluster.paths import Home, unexpanded_root
from localcluster.quantities import parse_quantity

DEFAULT_NODES = 4
DEFAULT_PORT = 0

CONTROLLER_COMMAND = [
    *(sys.executable, "-m", "dlr.cli", "controller", "--lease-namespace=kube-system"),
    *("--listen-address=127.0.0.1", "--metrics-port=0", "--health-port=0"),
    "--no-metrics-auth",
]
IDENTITY = "--identity=embedded"
"""Identity of the supervisor's controller, which ends with the supervisor."""

DEFAULT_NAMESPACE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {
        "name": "default",
        "labels": {"kubernetes.io/metadata.name": "default", names.LABEL_MAY_CORDON: "true"},
    },
    "spec": {"finalizers": ["kubernetes"]},
}
"""Default namespace of a new cluster. All nodes are the user's, so jobs and checks may cordon them."""

HomeFolder = Annotated[
    str | None,
    typer.Option("--home", callback=not_empty, help="The cluster's folder, instead of $DLR_HOME or ~/.dlr."),
]


def _quantity(text: str) -> str:
    """Validate a node's amount of a resource, as a `callback`, before anything is started."""
    try:
        value = parse_quantity(text)
    except (ValueError, ArithmeticError):
        value = None
    if value is None or not value.is_finite() or value <= 0:
        raise typer.BadParameter(
            f"{text!r} is not a quantity as Kubernetes writes them, such as 4, 500m or 16Gi."
        )
    return text


Nodes = Annotated[int, typer.Option(min=1, max=1000, help="Virtual nodes.")]
CpusPerNode = Annotated[str, typer.Option(callback=_quantity, help="CPUs that each node reports.")]
MemoryPerNode = Annotated[str, typer.Option(callback=_quantity, help="Memory that each node reports.")]
GpusPerNode = Annotated[int, typer.Option(min=0, help="nvidia.com/gpu that each node reports.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The API server's port; 0 is a free one.")]


def up(
    nodes: Nodes = DEFAULT_NODES,
    cpus_per_node: CpusPerNode = "8",
    memory_per_node: MemoryPerNode = "32Gi",
    gpus_per_node: GpusPerNode = 0,
    port: Port = DEFAULT_PORT,
    home: HomeFolder = None,
) -> None:
    """Start a local Kubernetes of processes, or bring the earlier one back."""
    from localcluster import supervisor

    place = _home(home)
    _refuse_used_folder(place)
    try:
        place.create()
        controller = controller_command(place)
    except OSError as error:
        raise _unusable(place, error) from error
    was_up = supervisor.is_up(place)
    manifests = crds.manifests()
    if not place.database.exists():  # later, its labels belong to the user
        manifests.append(DEFAULT_NAMESPACE)
    try:
        with waiting_for("the cluster to come up"):
            supervisor.up(
                place,
                nodes=nodes,
                cpus_per_node=cpus_per_node,
                memory_per_node=memory_per_node,
                gpus_per_node=gpus_per_node,
                port=port,
                manifests=manifests,
                addons=[supervisor.Addon("controller", [*controller, IDENTITY])],
            )
    except supervisor.ClusterError as error:
        raise CommandError(f"{error}.") from error
    except OSError as error:
        raise _unusable(place, error) from error
    except KeyboardInterrupt:
        interrupts.ignore_from_now_on()
        if not was_up:
            supervisor.down(place)
        raise
    print(
        f"The cluster is up: {nodes} virtual nodes and the dlr controller. Its files are in {place.root}.\n\n"
        f"  export KUBECONFIG={place.kubeconfig}\n"
        "  dlr job launch train.py --name train --workers 2   # your script\n"
        "  dlr job status train --watch\n"
        f"  {_down(home):<51}  # ends it; the next `dlr up` brings it back"
    )


def _down(home: str | None) -> str:
    """Return the command that stops this cluster."""
    return "dlr down" if home is None else f"dlr down --home {shlex.quote(home)}"


def _unusable(place: Home, error: OSError) -> CommandError:
    return CommandError(
        f"The folder {place.root} cannot be used for the cluster: {error.strerror}; "
        "choose another by --home or DLR_HOME."
    )


def _refuse_used_folder(place: Home) -> None:
    """Refuse a folder with other contents, which would become private, and be removed with the cluster."""
    try:
        is_used = place.root.is_dir() and not place.run.is_dir() and any(place.root.iterdir())
    except OSError as error:
        raise CommandError(f"The folder {place.root} cannot be read: {error.strerror}.") from error
    if is_used:
        raise UsageError(
            f"The folder {place.root} has other things in it; name another by --home or DLR_HOME."
        )


def controller_command(place: Home) -> list[str]:
    """Build the agent for the cluster's Pods, and return the controller's command.

    Containers share this host's files, so the agent's mount point has to be an existing folder.
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
    """Stop the embedded cluster; its objects stay for the next `dlr up`."""
    from localcluster import supervisor

    place = _home(home)
    if home is not None and not place.run.is_dir():
        raise CommandError(f"There is no embedded cluster in {place.root}.")
    try:
        with waiting_for("the cluster's processes to end"):
            supervisor.down(place)
    except supervisor.ClusterError as error:
        raise CommandError(f"{error}.") from error
    print(f"The cluster in {place.root} is down.")


def kubeconfig(home: HomeFolder = None) -> None:
    """Print where the embedded cluster's kubeconfig is."""
    path = _home(home).kubeconfig
    if not path.exists():
        raise CommandError(f"There is no embedded cluster in {path.parent}; start one with `dlr up`.")
    print(path)


def _home(folder: str | None) -> Home:
    try:
        return Home(Path(folder).expanduser().absolute()) if folder else Home.default()
    except RuntimeError as error:
        raise CommandError(
            f"The user's home in {folder or unexpanded_root()} is unknown; name the folder by its whole path."
        ) from error
