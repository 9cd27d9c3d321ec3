"""`dlr install`, `uninstall` and `manifests` as they are called, and their options.

What they need is imported when they are called.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

import deploy
from dlr.commands.install.images import NONE_NAMED, Images, images_of
from dlr.commands.options import Context, Kubeconfig, number
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
Queues = Annotated[
    bool, typer.Option("--kueue", help="With rights on Kueue's Workloads: jobs can wait in its queues.")
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
    kueue: bool = False,
) -> list[deploy.Document]:
    """`deploy.documents`; raises UsageError where that raises ValueError."""
    try:
        return deploy.documents(
            namespace,
            *images.complete(),
            jobs_namespace=jobs_namespace,
            network_policy=network_policy,
            priority_class=priority_class,
            kueue=kueue,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def install(
    namespace: ControllerNamespace = deploy.DEFAULT_NAMESPACE,
    image: Image = None,
    check_image: CheckImage = None,
    agent_image: AgentImage = None,
    jobs_namespace: JobsNamespace = None,
    network_policy: NetworkPolicy = False,
    priority_class: PriorityClass = False,
    kueue: Queues = False,
    replace_crds: Annotated[
        bool, typer.Option("--replace-crds", help="Put dlr's CRDs in the place of another operator's.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Let the API server check everything and store nothing.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait until the controller is ready.")] = True,
    timeout_seconds: Timeout = 300.0,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Install dlr into a cluster, or upgrade it."""
    images = Images(image, check_image, agent_image)
    documents_of = partial(
        documents_for,
        namespace,
        jobs_namespace=jobs_namespace,
        network_policy=network_policy,
        priority_class=priority_class,
        kueue=kueue,
    )
    documents_of(images)  # so that what cannot be meant is refused before anything is asked
    from dlr.commands.install.installer import Installer, get_or_none
    from dlr.commands.install.kinds import CONTROLLER, DEPLOYMENTS
    from dlr.kube.api import Api
    from dlr.kube.connection import connect

    api = Api(connect(kubeconfig, context, namespace))
    live = get_or_none(api, DEPLOYMENTS, CONTROLLER)
    if live is not None:
        images = images.otherwise(images_of(live))
    installer = Installer(api, jobs_namespace, dry_run=dry_run)
    installer.warn_of_images(images)
    installer.refuse_others(replace_crds=replace_crds)
    installer.apply(documents_of(images), timeout_seconds)
    if wait and not dry_run:
        installer.wait_until_ready(timeout_seconds)


def uninstall(
    namespace: ControllerNamespace = deploy.DEFAULT_NAMESPACE,
    jobs_namespace: JobsNamespace = None,
    delete_crds: Annotated[
        bool,
        typer.Option("--delete-crds", help="The CRDs too, and with them every ElasticJob that there is."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Let the API server check everything and delete nothing.")
    ] = False,
    timeout_seconds: Timeout = 120.0,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Take dlr out of a cluster; refused while jobs run."""
    documents = documents_for(
        namespace, jobs_namespace=jobs_namespace, network_policy=True, priority_class=True, kueue=True
    )
    from dlr.commands.install.uninstaller import Uninstaller
    from dlr.kube.api import Api
    from dlr.kube.connection import connect

    api = Api(connect(kubeconfig, context, namespace))
    Uninstaller(api, documents, jobs_namespace, dry_run=dry_run).run(timeout_seconds, delete_crds=delete_crds)


class ManifestFormat(StrEnum):
    YAML = "yaml"
    JSON = "json"


def manifests(
    namespace: ControllerNamespace = deploy.DEFAULT_NAMESPACE,
    image: Image = None,
    check_image: CheckImage = None,
    agent_image: AgentImage = None,
    jobs_namespace: JobsNamespace = None,
    network_policy: NetworkPolicy = False,
    priority_class: PriorityClass = False,
    kueue: Queues = False,
    output: Annotated[
        ManifestFormat, typer.Option("--output", "-o", help="What to print.")
    ] = ManifestFormat.YAML,
) -> None:
    """Print what `dlr install` applies, for kubectl."""
    import yaml

    from dlr.commands.output import print_json

    documents = documents_for(
        namespace,
        Images(image, check_image, agent_image),
        jobs_namespace=jobs_namespace,
        network_policy=network_policy,
        priority_class=priority_class,
        kueue=kueue,
    )
    if output is ManifestFormat.JSON:
        print_json({"apiVersion": "v1", "kind": "List", "items": documents})
    else:
        yaml.safe_dump_all(documents, sys.stdout, sort_keys=False)
