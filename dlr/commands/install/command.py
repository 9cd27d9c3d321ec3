"""The commands `dlr install`, `uninstall` and `manifests`, with their options.

Their dependencies are imported when they run.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

import deploy
from dlr.commands.install.images import Images, images_of
from dlr.commands.options import Context, Kubeconfig, with_options
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
Timeout = Annotated[float, typer.Option("--timeout", help="How many seconds to wait at most.", min=0)]


@dataclass(frozen=True)
class Installation:
    """Options that `dlr install` and `dlr manifests` have in common."""

    namespace: ControllerNamespace = deploy.DEFAULT_NAMESPACE
    image: Image = None
    check_image: CheckImage = None
    agent_image: AgentImage = None
    jobs_namespace: JobsNamespace = None
    network_policy: NetworkPolicy = False
    priority_class: PriorityClass = False
    kueue: Queues = False

    @property
    def images(self) -> Images:
        """Images that the options name."""
        return Images(self.image, self.check_image, self.agent_image)

    def documents(self, images: Images | None = None) -> list[deploy.Document]:
        """Return `deploy.documents` with these images; raise UsageError where that raises ValueError."""
        try:
            return deploy.documents(
                self.namespace,
                *(images or self.images).complete(),
                jobs_namespace=self.jobs_namespace,
                network_policy=self.network_policy,
                priority_class=self.priority_class,
                kueue=self.kueue,
            )
        except ValueError as error:
            raise UsageError(str(error)) from error


@with_options("wanted", Installation)
def install(
    wanted: Installation,
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
    images = wanted.images
    wanted.documents()  # refuses invalid options before the first request
    from dlr.commands.install.installer import Installer, get_or_none
    from dlr.commands.install.kinds import CONTROLLER, DEPLOYMENTS
    from dlr.kube.api import Api
    from dlr.kube.connection import connect

    api = Api(connect(kubeconfig, context, wanted.namespace))
    live = get_or_none(api, DEPLOYMENTS, CONTROLLER)
    if live is not None:
        images = images.otherwise(images_of(live))
    installer = Installer(api, wanted.jobs_namespace, dry_run=dry_run)
    installer.warn_of_images(images)
    installer.refuse_others(replace_crds=replace_crds)
    installer.apply(wanted.documents(images), timeout_seconds)
    if wait and not dry_run:
        installer.wait_until_ready(timeout_seconds)


def uninstall(
    namespace: ControllerNamespace = deploy.DEFAULT_NAMESPACE,
    jobs_namespace: JobsNamespace = None,
    delete_crds: Annotated[
        bool,
        typer.Option("--delete-crds", help="Delete the CRDs, too, and with them every ElasticJob."),
    ] = False,
    timeout_seconds: Timeout = 120.0,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Take dlr out of a cluster; refused while jobs run."""
    wanted = Installation(
        namespace, jobs_namespace=jobs_namespace, network_policy=True, priority_class=True, kueue=True
    )
    documents = wanted.documents()
    from dlr.commands.install.uninstaller import Uninstaller
    from dlr.kube.api import Api
    from dlr.kube.connection import connect

    api = Api(connect(kubeconfig, context, namespace))
    Uninstaller(api, documents, jobs_namespace).run(timeout_seconds, delete_crds=delete_crds)


@with_options("wanted", Installation)
def manifests(wanted: Installation) -> None:
    """Print what `dlr install` applies, for kubectl."""
    import yaml

    yaml.safe_dump_all(wanted.documents(), sys.stdout, sort_keys=False)
