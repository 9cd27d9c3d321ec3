"""Removes dlr's objects from a cluster: first the controller, then its permissions, last its namespace."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from controller.errors import NotFound
from controller.resources import LEASES
from dlr.commands.errors import CommandError
from dlr.commands.install import kinds, others
from dlr.commands.install.installer import deployments_of, get_or_none, live_crds
from dlr.kube.api import ELASTICJOBS, JSON, NAMESPACES, NODECHECKS, PODS, Api, Resource
from dlr.kube.following import until_finished

_SHARED = tuple(f"ClusterRole/dlr-{name}" for name in ("view", "edit", "admin", "metrics-reader"))
"""Objects that all installations of a cluster share, besides the CRDs."""


class Uninstaller:
    """Removes the installation in the namespace of `api`.

    Args:
        documents: all objects that an installation there may have.
        jobs_namespace: namespace whose jobs its controller manages; None for all.
    """

    def __init__(self, api: Api, documents: Sequence[JSON], jobs_namespace: str | None) -> None:
        self._api = api
        self._documents = documents
        self._jobs_namespace = jobs_namespace
        self._deleted = 0

    def run(self, timeout_seconds: float, *, delete_crds: bool) -> None:
        """Remove the installation.

        Raises:
            CommandError: it is another's, jobs run, or an object is not gone in time.
        """
        deadline = time.monotonic() + timeout_seconds
        controllers = deployments_of(self._api, kinds.CONTROLLER_LABEL)
        refusal = others.why_not_taken_away(controllers, self._api.namespace, self._jobs_namespace)
        if refusal:
            raise CommandError(refusal)
        others_left = [each for each in controllers if each["metadata"]["namespace"] != self._api.namespace]
        self._refuse(others_left, delete_crds=delete_crds)
        crds = [each for each in self._documents if each["kind"] == "CustomResourceDefinition"]
        rest = [each for each in reversed(self._documents) if each not in crds]
        for document in rest:
            shared = f"{document['kind']}/{document['metadata']['name']}" in _SHARED
            if document["kind"] == "Namespace" or (shared and others_left):
                continue
            self._delete(document)
            if document["kind"] == "Deployment":
                self._wait_for_pods(deadline)
                self._delete_named(self._api, LEASES, kinds.CONTROLLER)
        if delete_crds:
            for document in crds:
                if self._delete(document):
                    self._wait_until_gone(document, deadline)
        self._delete_namespace(deadline)
        self._say_what_is_left(crds, delete_crds=delete_crds)

    def _refuse(self, others_left: Sequence[JSON], *, delete_crds: bool) -> None:
        everywhere = self._jobs_namespace is None or delete_crds
        foreign = others.foreign_crds(live_crds(self._api))
        found = [] if others.defines_jobs(foreign) else self._objects(ELASTICJOBS, everywhere)
        jobs = others.unfinished(found, suspended=delete_crds)
        checks = others.unfinished(self._objects(NODECHECKS, everywhere))
        if delete_crds and others_left:
            raise CommandError(
                f"Another controller of dlr needs the CRDs ({others.names_of(others_left)}): "
                "leave out --delete-crds."
            )
        if jobs:
            how = (
                "wait for them, or delete them with `dlr job delete`"
                if delete_crds
                else "wait for them, or take their Pods away with `dlr job suspend`"
            )
            raise CommandError(f"These jobs have not ended: {others.names_of(jobs)}; {how}.")
        if checks:
            raise CommandError(
                f"These NodeChecks have not ended: {others.names_of(checks)}; wait for them, or delete them."
            )

    def _objects(self, kind: Resource, everywhere: bool) -> list[JSON]:
        """Return all objects of a kind; none if the cluster lacks the kind."""
        api = self._api.within(self._jobs_namespace)
        try:
            return api.find(kind, all_namespaces=everywhere)
        except NotFound:
            return []

    def _delete(self, document: JSON) -> bool:
        """Delete an object if it is dlr's; return whether it was."""
        api, kind = self._api.within(document["metadata"].get("namespace")), kinds.kind_of(document)
        live = get_or_none(api, kind, document["metadata"]["name"])
        if live is None:
            return False
        if not kinds.is_ours(live):
            print(f"{kinds.title_of(document)} left: it is not dlr's")
            return False
        self._delete_named(api, kind, document["metadata"]["name"], kinds.title_of(document))
        return True

    def _delete_named(self, api: Api, kind: Resource, name: str, title: str = "") -> None:
        try:
            api.delete(kind, name)
        except NotFound:
            return
        self._deleted += 1
        shown = title or f"{kind.kind.lower()}/{api.namespace}/{name}"
        print(f"{shown} deleted", flush=True)

    def _delete_namespace(self, deadline: float) -> None:
        for document in self._documents:
            if document["kind"] != "Namespace":
                continue
            live = get_or_none(self._api, NAMESPACES, self._api.namespace)
            if live is None or not kinds.is_ours(live):
                return
            if self._api.find(PODS):
                print(f"namespace/{self._api.namespace} left: there are Pods of others in it")
                return
            self._delete(document)
            self._wait_until_gone(document, deadline)

    def _wait_for_pods(self, deadline: float) -> None:
        """Wait for the end of the controller's Pods, which would recreate some objects."""

        def left() -> list[str]:
            pods = self._api.find(PODS, label_selector=kinds.CONTROLLER_LABEL)
            return [pod["metadata"]["name"] for pod in pods]

        self._wait("the controller's Pods", left, deadline)

    def _wait_until_gone(self, document: JSON, deadline: float) -> None:
        name = document["metadata"]["name"]

        def left() -> list[str]:
            return [name] if get_or_none(self._api, kinds.kind_of(document), name) else []

        self._wait(kinds.title_of(document), left, deadline)

    def _wait(self, what: str, left: Callable[[], list[str]], deadline: float) -> None:
        seconds = max(0.0, deadline - time.monotonic())
        *_, remaining = until_finished(left, lambda names: not names, within_seconds=seconds)
        if remaining:
            raise CommandError(
                f"{what} not gone in time ({', '.join(remaining)}); run it again to go on from here."
            )

    def _say_what_is_left(self, crds: Sequence[JSON], *, delete_crds: bool) -> None:
        if not self._deleted:
            print(f"There is nothing of dlr in namespace {self._api.namespace}.")
        left = (
            []
            if delete_crds
            else [c for c in crds if get_or_none(self._api, kinds.kind_of(c), c["metadata"]["name"])]
        )
        if left:
            print("The CRDs are left, with all jobs and checks; --delete-crds deletes them too.")
