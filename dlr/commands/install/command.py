"""`dlr install` and `dlr uninstall`, as they are called. What they need is imported when they are."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

import deploy
from dlr.commands.install.images import Images, images_of
from dlr.commands.install.options import (
    AgentImage,
    CheckImage,
    ControllerNamespace,
    Image,
    JobsNamespace,
    NetworkPolicy,
    PriorityClass,
    Timeout,
    documents_for,
)
from dlr.commands.options import Context, Kubeconfig


def install(
    namespace: ControllerNamespace = deploy.DEFAULT_NAMESPACE,
    image: Image = None,
    check_image: CheckImage = None,
    agent_image: AgentImage = None,
    jobs_namespace: JobsNamespace = None,
    network_policy: NetworkPolicy = False,
    priority_class: PriorityClass = False,
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
    """Install dlr into a cluster, or upgrade it: CRDs, controller, rights and policies."""
    images = Images(image, check_image, agent_image)
    documents_of = partial(
        documents_for,
        namespace,
        jobs_namespace=jobs_namespace,
        network_policy=network_policy,
        priority_class=priority_class,
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
    """Take dlr out of a cluster; refused while jobs run. CRDs and jobs stay, unless asked for."""
    documents = documents_for(
        namespace, jobs_namespace=jobs_namespace, network_policy=True, priority_class=True
    )
    from dlr.commands.install.uninstaller import Uninstaller
    from dlr.kube.api import Api
    from dlr.kube.connection import connect

    api = Api(connect(kubeconfig, context, namespace))
    Uninstaller(api, documents, jobs_namespace, dry_run=dry_run).run(timeout_seconds, delete_crds=delete_crds)
