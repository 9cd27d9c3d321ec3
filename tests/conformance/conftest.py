"""The server under test, and one fresh namespace and one HTTP session a test."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest

from controller.resources import CONFIGMAPS, NAMESPACES, NODES, SERVICEACCOUNTS
from e2e.cluster import every_kubectl

from .accounts import Accounts
from .backend import Backend, EmbeddedCluster
from .kubectl import Kubectl
from .objects import configmap, unique, widget, widget_crd
from .rawapi import Api
from .resources import CRDS, WIDGETS
from .waiting import eventually

T = TypeVar("T")

OPTION = "--conformance-kubeconfig"
VARIABLE = "DLR_CONFORMANCE_KUBECONFIG"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, default=None, help="an API server to test instead of the embedded one")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.conformance)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kubectl_program" in metafunc.fixturenames:
        metafunc.parametrize("kubectl_program", every_kubectl(), ids=lambda program: Path(program).name)


def blocking(work: Coroutine[Any, Any, T]) -> T:
    """For fixtures that outlive a test's event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _install_widgets(backend: Backend) -> None:
    async with aiohttp.ClientSession() as session:
        api = Api(session, backend.access)
        definition = widget_crd()
        created = await api.create(CRDS, definition)
        if created.status == 409:
            found = (await api.get(CRDS, None, definition["metadata"]["name"])).expect(200)
            definition["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
            (await api.put(CRDS, definition)).expect(200)
        else:
            created.expect(201)
        await eventually(lambda: api.list(WIDGETS), until=lambda reply: reply.status == 200)


async def _remove_widgets(backend: Backend) -> None:
    async with aiohttp.ClientSession() as session:
        await Api(session, backend.access).delete(CRDS, None, widget_crd()["metadata"]["name"])


@pytest.fixture(scope="package")
def backend(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    given = pytestconfig.getoption(OPTION, default=None) or os.environ.get(VARIABLE)
    if given:
        external = Backend(Path(given), None)
        blocking(_install_widgets(external))
        yield external
        blocking(_remove_widgets(external))
        return
    cluster = EmbeddedCluster(tmp_path_factory.mktemp("cluster") / "home", with_nodes=True)
    try:
        cluster.start()
        embedded = Backend(cluster.kubeconfig, cluster)
        blocking(_install_widgets(embedded))
        yield embedded
    finally:
        cluster.stop()


@pytest.fixture
def embedded(backend: Backend) -> EmbeddedCluster:
    if backend.embedded is None:
        pytest.skip("only asked of the embedded API server")
    return backend.embedded


@pytest.fixture
async def api(backend: Backend) -> AsyncIterator[Api]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Api(session, backend.access)


async def _default_account(api: Api, namespace: str) -> None:
    """Wait for what the controllers of a control plane put into every new namespace; Pods need it."""
    await eventually(
        lambda: api.get(SERVICEACCOUNTS, namespace, "default"), until=lambda reply: reply.status == 200
    )


@pytest.fixture(scope="package")
def has_controllers(backend: Backend) -> bool:
    async def default_account_appears() -> bool:
        async with aiohttp.ClientSession() as session:
            api = Api(session, backend.access)
            name = unique("conformance")
            (await api.create(NAMESPACES, {"metadata": {"name": name}})).expect(201)
            try:
                await _default_account(api, name)
            except AssertionError:
                return False
            finally:
                await api.delete(NAMESPACES, None, name)
            return True

    return blocking(default_account_appears())


@pytest.fixture
async def namespace(api: Api, has_controllers: bool) -> AsyncIterator[str]:
    name = unique("conformance")
    (await api.create(NAMESPACES, {"metadata": {"name": name}})).expect(201)
    if has_controllers:
        await _default_account(api, name)
    yield name
    await api.delete(NAMESPACES, None, name)


@pytest.fixture(scope="package")
def controllers(has_controllers: bool) -> None:
    """Skips unless the controllers of a control plane run beside the API server."""
    if not has_controllers:
        pytest.skip("this API server runs without kube-controller-manager")


@pytest.fixture(scope="package")
def nodes(backend: Backend, controllers: None) -> None:
    """Skips unless some node runs Pods."""

    def ready(node: dict[str, Any]) -> bool:
        """It is, and has lost the taint of a new one, which goes a moment later."""
        conditions = node.get("status", {}).get("conditions", [])
        taints = {taint["key"] for taint in node["spec"].get("taints", [])}
        is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        return is_ready and "node.kubernetes.io/not-ready" not in taints

    async def a_node_is_ready() -> bool:
        async with aiohttp.ClientSession() as session:
            api = Api(session, backend.access)

            async def probe() -> bool:
                return any(map(ready, (await api.list(NODES)).expect(200)["items"]))

            try:
                return await eventually(probe)
            except AssertionError:
                return False

    if not blocking(a_node_is_ready()):
        pytest.skip("this cluster has no Ready node to run Pods")


@pytest.fixture
def kubectl(kubectl_program: str, backend: Backend, tmp_path: Path) -> Kubectl:
    return Kubectl(kubectl_program, backend.kubeconfig, tmp_path)


class Maker:
    """Creates objects in the test's namespace and hands back what the server made of them."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.namespace = namespace

    async def widget(self, name: str = "w", spec: dict[str, Any] | None = None, **metadata: Any) -> Any:
        return (await self.api.create(WIDGETS, widget(self.namespace, name, spec, **metadata))).expect(201)

    async def configmap(self, name: str = "c", data: dict[str, str] | None = None, **metadata: Any) -> Any:
        obj = configmap(self.namespace, name, data, **metadata)
        return (await self.api.create(CONFIGMAPS, obj)).expect(201)


@pytest.fixture
def make(api: Api, namespace: str) -> Maker:
    return Maker(api, namespace)


@pytest.fixture
def accounts(api: Api, namespace: str) -> Accounts:
    return Accounts(api, namespace)
