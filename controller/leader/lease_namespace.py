"""Default namespace of the leader's Lease."""

from __future__ import annotations

from controller.client import AsyncClient
from controller.errors import ConfigError, NotFound
from controller.resources import LEASES, SELF_ACCESS_REVIEWS, SELF_REVIEWS

_SERVICE_ACCOUNT = "system:serviceaccount:"
_VERBS = ("get", "create", "update")
"""Verbs that the elector needs for the Lease."""


async def find_lease_namespace(client: AsyncClient, name: str) -> str:
    """Return the connection's namespace, or else the ServiceAccount's own, whichever allows the Lease.

    Raises:
        ConfigError: the account may not use the Lease `name` in either.
    """
    user = await _username(client)
    candidates = [client.connection.namespace]
    if user.startswith(_SERVICE_ACCOUNT):
        candidates.append(user.removeprefix(_SERVICE_ACCOUNT).partition(":")[0])
    for namespace in dict.fromkeys(candidates):
        if all([await _may(client, verb, name, namespace) for verb in _VERBS]):
            return namespace
    raise ConfigError(
        f"{user or 'this account'} may not get, create and update the Lease {name} "
        f"in namespace {' or '.join(candidates)}: name another namespace with --lease-namespace, "
        "or give it the rights of deploy/"
    )


async def _username(client: AsyncClient) -> str:
    try:
        answer = await client.create(SELF_REVIEWS, SELF_REVIEWS.manifest({}, spec={}))
    except NotFound:  # before Kubernetes 1.28
        return ""
    return str(answer["status"]["userInfo"].get("username", ""))


async def _may(client: AsyncClient, verb: str, name: str, namespace: str) -> bool:
    wanted = {"verb": verb, "group": LEASES.group, "resource": LEASES.plural, "namespace": namespace}
    if verb != "create":  # RBAC cannot allow create by name
        wanted["name"] = name
    body = SELF_ACCESS_REVIEWS.manifest({}, spec={"resourceAttributes": wanted})
    answer = await client.create(SELF_ACCESS_REVIEWS, body)
    return bool(answer["status"].get("allowed"))
