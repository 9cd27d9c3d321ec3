"""Client, cache, election and events against the embedded API server: TLS, a token, kill -9."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest

from controller.cache import Cache
from controller.client import AsyncClient
from controller.errors import ConfigError, NamespaceTerminating, Unavailable
from controller.kubeconfig import load_connection
from controller.leader.lease_namespace import find_lease_namespace
from controller.resources import CONFIGMAPS, NAMESPACES, ROLEBINDINGS, ROLES, SERVICEACCOUNTS
from controller.shape import WHOLE
from controller.watch.reflector import WatchTiming
from tests.conformance.backend import EmbeddedCluster
from tests.controller.waiting import background, eventually

pytestmark = pytest.mark.real

"""A machine that is busy for a while costs no leadership."""
TIMING = WatchTiming(idle_timeout_seconds=1.0, backoff_base_seconds=0.05, backoff_cap_seconds=0.2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = EmbeddedCluster(tmp_path_factory.mktemp("cluster") / "home", with_nodes=False)
    cluster.start()
    yield cluster
    cluster.stop()


@asynccontextmanager
async def client_to(cluster, **options):
    async with patient_client(load_connection(cluster.kubeconfig), **options) as client:
        yield client


def patient_client(connection, **options):
    return AsyncClient(connection, **{"call_timeout_seconds": 300.0} | options)


def config_map(name, **data):
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", "labels": {"test": "controller"}},
        "data": data,
    }


async def test_a_namespace_that_is_being_terminated_is_known_by_its_refusal(cluster):
    async with client_to(cluster) as client:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "leaving"}}
        await client.create(NAMESPACES, namespace)
        held = config_map("held")
        held["metadata"] |= {"namespace": "leaving", "finalizers": ["example.org/held"]}
        await client.create(CONFIGMAPS, held)
        await client.delete(NAMESPACES, "leaving")
        late = config_map("late")
        late["metadata"]["namespace"] = "leaving"
        with pytest.raises(NamespaceTerminating, match="because it is being terminated"):
            await client.create(CONFIGMAPS, late)
        free = {"metadata": {"finalizers": None}}
        await client.patch(CONFIGMAPS, "held", free, "leaving")


async def test_cache_follows_through_a_kill_and_restart_of_the_server(cluster):
    async with client_to(cluster) as client:
        cache = Cache(client, label_selectors={CONFIGMAPS: "test=controller"}, timing=TIMING)
        cache.keep_only({CONFIGMAPS: WHOLE})
        store = cache.store(CONFIGMAPS)
        async with background(cache.run()):
            await cache.wait_synced(300)
            await client.create(CONFIGMAPS, config_map("stays", a="1"))
            await client.create(CONFIGMAPS, config_map("goes"))
            await eventually(lambda: len(store) == 2)
            cluster.kill()
            with pytest.raises(Unavailable, match="No API server answers"):
                await client.get(CONFIGMAPS, "stays", "default")
            await asyncio.to_thread(cluster.start)
            await client.patch(CONFIGMAPS, "stays", {"data": {"a": "2"}}, "default")
            await client.delete(CONFIGMAPS, "goes", "default")
            await eventually(lambda: len(store) == 1 and store.list()[0]["data"] == {"a": "2"})
            await client.patch(CONFIGMAPS, "stays", {"metadata": {"labels": {"test": None}}}, "default")
            await eventually(lambda: not store.list())  # left the selector


async def test_the_lease_of_an_account_that_works_from_elsewhere_is_in_its_own_namespace(cluster):
    async with client_to(cluster) as admin:
        assert await find_lease_namespace(admin, "dlr-controller") == "default"
        for resource, obj in an_account_with_a_lease("dlr-system"):
            await admin.create(resource, obj)
        own = await account_of(admin, "dlr-system")
        async with patient_client(own) as client:
            assert own.namespace == "default"
            assert await find_lease_namespace(client, "dlr-controller") == "dlr-system"
            with pytest.raises(
                ConfigError,
                match=r"system:serviceaccount:dlr-system:controller may not get, create and update the "
                r"Lease another in namespace default or dlr-system: name another namespace with --lease-namespace",
            ):
                await find_lease_namespace(client, "another")


def an_account_with_a_lease(namespace):
    metadata = {"name": "controller", "namespace": namespace}
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    rules = [
        {**leases, "resourceNames": ["dlr-controller"], "verbs": ["get", "update"]},
        {**leases, "verbs": ["create"]},
    ]
    return (
        (NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        (SERVICEACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        (ROLES, {"apiVersion": ROLES.api_version, "kind": "Role", "metadata": metadata, "rules": rules}),
        (
            ROLEBINDINGS,
            {
                "apiVersion": ROLEBINDINGS.api_version,
                "kind": "RoleBinding",
                "metadata": metadata,
                "roleRef": {"apiGroup": ROLES.group, "kind": "Role", "name": "controller"},
                "subjects": [{"kind": "ServiceAccount", **metadata}],
            },
        ),
    )


async def account_of(admin, namespace):
    """The admin's connection with the account's token in place of the admin's credentials."""
    path = SERVICEACCOUNTS.path(namespace, "controller", "token")
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    connection = admin.connection
    async with aiohttp.ClientSession() as session:
        answer = await session.post(
            connection.server + path,
            json=body,
            headers=connection.authorization(),
            ssl=connection.ssl_context(),
        )
        token = (await answer.json())["status"]["token"]
    return replace(connection, token=token)
