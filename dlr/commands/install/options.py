"""The options that `dlr install`, `uninstall`, `manifests` and `doctor` have in common."""

from __future__ import annotations

from typing import Annotated

import typer

import deploy
from dlr.commands.install.images import NONE_NAMED, Images
from dlr.commands.options import number
from dlr.kube.errors import UsageError

ControllerNamespace = Annotated[str, typer.Option("--namespace", "-n", help="Where the controller runs.")]
JobsNamespace = Annotated[
    str | None,
    typer.Option(
        help="Look after jobs of this namespace only, with rights there; nodes are then not cordoned."
    ),
]
Image = Annotated[str | None, typer.Option(help="The controller's image, where you have pushed it.")]
CheckImage = Annotated[
    str | None,
    typer.Option(help="The image that nodes are checked in; else the dlr-worker beside the controller's."),
]
AgentImage = Annotated[
    str | None,
    typer.Option(
        help="The image that brings the agent into Pods; else the dlr-agent beside the controller's."
    ),
]
NetworkPolicy = Annotated[
    bool, typer.Option("--network-policy", help="With a NetworkPolicy for the controller's Pods.")
]
PriorityClass = Annotated[
    bool, typer.Option("--priority-class", help="With a PriorityClass above that of training.")
]
Timeout = Annotated[
    float, typer.Option("--timeout", callback=number, help="How many seconds to wait at most.", min=0)
]


def documents_for(
    namespace: str,
    images: Images = NONE_NAMED,
    *,
    jobs_namespace: str | None = None,
    network_policy: bool = False,
    priority_class: bool = False,
) -> list[deploy.Document]:
    """`deploy.documents`; raises UsageError where that raises ValueError."""
    try:
        return deploy.documents(
            namespace,
            *images.complete(),
            jobs_namespace=jobs_namespace,
            network_policy=network_policy,
            priority_class=priority_class,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
