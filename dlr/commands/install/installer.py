"""Applies dlr's objects to a cluster, and waits until its controller is ready."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from controller.errors import ApiError, Forbidden, NotFound
from controller.resources import CRDS, LEASES
from crds import names
from dlr.commands.errors import CommandError
from dlr.commands.install import kinds, others
from dlr.commands.install.images import Images, of_no_registry
from dlr.commands.install.readiness import Reading, controller_reading, crds_reading, leader
from dlr.kube.api import ELASTICJOBS, JSON, NAMESPACES, PODS, Api, Resource, is_embedded
from dlr.kube.following import until_finished

EMBEDDED_LEASE_NAMESPACE = "kube-system"
_BOOKKEEPING = ("resourceVersion", "generation", "managedFields")
_CRD_PLURALS = ("elasticjobs", "elasticworkers", "elasticworlds", "nodechecks", "scaleplans", "shardsets")


class Installer:
    """One installation of dlr, into the namespace of `api`.

    Args:
        jobs_namespace: namespace whose jobs the controller manages; None for all.
        dry_run: whether the API server only validates.
    """

    def __init__(self, api: Api, jobs_namespace: str | None, *, dry_run: bool) -> None:
        self._api = api
        self._jobs_namespace = jobs_namespace
        self._dry_run = dry_run

    def refuse_others(self, *, replace_crds: bool) -> None:
        """Raise CommandError if DLRover's operator or another controller of dlr is in the way."""
        api = self._api
        if self._jobs_namespace is not None and get_or_none(api, NAMESPACES, self._jobs_namespace) is None:
            raise CommandError(
                f"There is no namespace {self._jobs_namespace}; make it first: "
                f"kubectl create namespace {self._jobs_namespace}"
            )
        controllers = deployments_of(api, kinds.CONTROLLER_LABEL)
        foreign = others.foreign_crds(live_crds(api))
        managers = deployments_of(api, others.DLROVER_LABEL)
        refusal = others.why_not_beside(
            controllers, api.namespace, self._jobs_namespace
        ) or others.why_not_instead_of_dlrover(
            foreign,
            others.dlrover_operators(managers),
            api.find(ELASTICJOBS, all_namespaces=True) if others.defines_jobs(foreign) else [],
            replace_crds=replace_crds,
        )
        if refusal:
            raise CommandError(refusal)

    def warn_of_images(self, images: Images) -> None:
        """Warn of images that no node can pull."""
        unnamed = of_no_registry(images.complete())
        if unnamed and not self._is_embedded():
            print(
                f"dlr: warning: {', '.join(unnamed)} would come from Docker Hub, which has none of dlr's. "
                "Unless all nodes have them already, name those that you have pushed with --image, "
                "--agent-image and --check-image.",
                file=sys.stderr,
            )

    def apply(self, documents: Sequence[JSON], timeout_seconds: float) -> None:
        """Apply all documents, and print each outcome. Other objects follow when the CRDs are served."""
        crds = [document for document in documents if document["kind"] == "CustomResourceDefinition"]
        for document in crds:
            self._apply(document)
        if not self._dry_run:
            titles = [document["metadata"]["name"] for document in crds]
            self._wait(lambda: crds_reading(self._api.get(CRDS, name) for name in titles), timeout_seconds)
        for document in documents:
            if document not in crds:
                self._apply(document)

    def _apply(self, document: JSON) -> None:
        outcome = apply(self._api, document, dry_run=self._dry_run)
        print(f"{kinds.title_of(document)} {outcome}{' (dry run)' if self._dry_run else ''}", flush=True)

    def wait_until_ready(self, timeout_seconds: float) -> None:
        read = self._read_embedded if self._is_embedded() else self._read_controller
        print(self._wait(read, timeout_seconds).sentence)

    def _is_embedded(self) -> bool:
        version, _ = self._api.version()
        return is_embedded(version)

    def _read_controller(self) -> Reading:
        api = self._api
        return controller_reading(
            api.get(kinds.DEPLOYMENTS, kinds.CONTROLLER),
            api.find(PODS, label_selector=kinds.CONTROLLER_LABEL),
            get_or_none(api, LEASES, kinds.CONTROLLER),
            api.version()[1],
        )

    def _read_embedded(self) -> Reading:
        """Read the state of `dlr up`'s own controller: the embedded cluster runs no Deployments."""
        lease = get_or_none(self._api.within(EMBEDDED_LEASE_NAMESPACE), LEASES, kinds.CONTROLLER)
        holder = leader(lease, self._api.version()[1])
        if holder is None:
            return Reading(
                False, "This is an embedded cluster, and the controller of `dlr up` does not lead yet."
            )
        return Reading(
            True, "This is an embedded cluster: it runs no Deployments, and `dlr up` its controller."
        )

    @staticmethod
    def _wait(read: Callable[[], Reading], timeout_seconds: float) -> Reading:
        """Return the first reading that is ready; until then print each change.

        Raises:
            CommandError: the time is over; the message has the last reading.
        """
        last = ""
        for reading in until_finished(read, lambda found: found.ready, within_seconds=timeout_seconds):
            if not reading.ready and reading.sentence != last:
                print(f"Waiting: {reading.sentence}", flush=True)
            last = reading.sentence
        if reading.ready:
            return reading
        raise CommandError(
            f"After {timeout_seconds:.0f} s dlr is not ready: {last} All is applied; `dlr doctor` says more, "
            "and `dlr install` can be run again."
        )


def get_or_none(api: Api, kind: Resource, name: str) -> JSON | None:
    """Return an object; None if there is none, or no such kind."""
    try:
        return api.get(kind, name)
    except NotFound:
        return None


def deployments_of(api: Api, label_selector: str) -> list[JSON]:
    return api.find(kinds.DEPLOYMENTS, all_namespaces=True, label_selector=label_selector)


def live_crds(api: Api) -> list[JSON]:
    """Return the live CRDs among those of an installation."""
    found = (get_or_none(api, CRDS, f"{plural}.{names.GROUP}") for plural in _CRD_PLURALS)
    return [crd for crd in found if crd is not None]


def apply(api: Api, manifest: JSON, *, dry_run: bool = False) -> str:
    """Apply a manifest, and return the outcome in words; with `dry_run` the API server only validates.

    An existing namespace of others is left unchanged: its labels decide which Pods may run in it.

    Raises:
        CommandError: the API server refuses; the message names the object.
    """
    kind, scoped = kinds.kind_of(manifest), api.within(manifest["metadata"].get("namespace"))
    try:
        live = get_or_none(scoped, kind, manifest["metadata"]["name"])
        if live is not None and manifest["kind"] == "Namespace" and not kinds.is_ours(live):
            return "left as it is: it was there before dlr"
        applied = scoped.apply(kind, manifest, dry_run=dry_run)
    except ApiError as error:
        if dry_run and isinstance(error, NotFound) and error.names_object:
            return "created, untried: the API server cannot try it before there is its namespace"
        raise _refused(manifest, error) from error
    if live is None:
        return "created"
    return "unchanged" if _substance(applied) == _substance(live) else "configured"


def _substance(live: JSON) -> JSON:
    """Return the object without bookkeeping: an apply may change only the owners of fields."""
    return {**live, "metadata": {k: v for k, v in live["metadata"].items() if k not in _BOOKKEEPING}}


def _refused(manifest: JSON, error: ApiError) -> CommandError:
    hint = ""
    if isinstance(error, Forbidden):
        hint = " An installer needs the rights of a cluster-admin."
    elif isinstance(error, NotFound) and not error.names_object:
        hint = " See `dlr doctor`."
    return CommandError(f"{kinds.title_of(manifest)}: {error}{hint}")
