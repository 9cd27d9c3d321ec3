"""A node's sign of life: its Lease, renewed every 10 seconds while the node has power."""

from __future__ import annotations

import asyncio
import logging
import random

from controller.errors import ApiError, NotFound
from controller.resources import LEASES
from localcluster.client.api import ApiClient
from localcluster.client.clock import micro_timestamp, utc_now
from localcluster.resource import JSON

LEASE_NAMESPACE = "kube-node-lease"
RENEW_SECONDS = 10.0
LEASE_SECONDS = 40
RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)


async def keep_lease(client: ApiClient, node: JSON) -> None:
    """Until cancelled: while the node has power."""
    while True:
        try:
            await renew_lease(client, node)
        except ApiError as failure:
            log.warning("lease not renewed node=%s error=%s", node["metadata"]["name"], failure)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            await asyncio.sleep(RENEW_SECONDS * random.uniform(0.9, 1.0))


async def renew_lease(client: ApiClient, node: JSON) -> None:
    name = node["metadata"]["name"]
    spec = {
        "holderIdentity": name,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": micro_timestamp(utc_now()),
    }
    try:
        await client.patch(LEASES.path(LEASE_NAMESPACE, name), {"spec": spec})
    except NotFound:
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
        metadata = {"name": name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]}
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }
        await client.create(LEASES.path(LEASE_NAMESPACE), lease)
