"""What a worker's Pods may do: a ServiceAccount and a RoleBinding in the namespace of their job or check.

They read ElasticJobs, NodeChecks and ElasticWorkers, patch their own report and keep their own Lease, and
nothing else (ClusterRole `dlr-worker`; the admission policy in deploy/ holds each to its own objects).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from controller.client import Client
from controller.errors import AlreadyExists
from controller.resources import ROLEBINDINGS, SERVICEACCOUNTS
from crds import names

WORKER_ROLE = "dlr-worker"
RECHECK_SECONDS = 300.0


class WorkerAccess:
    """Makes sure of both before Pods are made; asks the API server again now and then."""

    def __init__(self, client: Client, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        self._ensured: dict[tuple[str, str], float] = {}

    async def ensure(self, namespace: str, account: str) -> bool:
        """Make what is not there; whether it was remembered to be there, and the API server not asked."""
        ensured = self._ensured.get((namespace, account))
        if ensured is not None and self._monotonic() - ensured < RECHECK_SECONDS:
            return True
        if account == names.SERVICE_ACCOUNT:
            await self._create(SERVICEACCOUNTS, _service_account(namespace))
        await self._create(ROLEBINDINGS, _role_binding(namespace, account))
        self._ensured[(namespace, account)] = self._monotonic()
        return False

    def forget(self, namespace: str, account: str) -> None:
        """Ask the API server at the next `ensure`: a Pod was refused, so somebody may have deleted them."""
        self._ensured.pop((namespace, account), None)

    async def _create(self, resource: object, obj: dict[str, object]) -> None:
        with contextlib.suppress(AlreadyExists):
            await self._client.create(resource, obj)  # type: ignore[arg-type]


def _service_account(namespace: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(names.SERVICE_ACCOUNT, namespace),
    }


def _role_binding(namespace: str, account: str) -> dict[str, object]:
    name = WORKER_ROLE if account == names.SERVICE_ACCOUNT else f"{WORKER_ROLE}-{account}"
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(name, namespace),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": WORKER_ROLE},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }


def _metadata(name: str, namespace: str) -> dict[str, object]:
    return {"name": name, "namespace": namespace, "labels": {names.LABEL_MANAGED_BY: names.MANAGER}}
