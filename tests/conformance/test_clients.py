"""The Python clients people use, each doing a day's work: built-ins, custom resources, status, watch, errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kr8s
import kr8s.asyncio
import kr8s.asyncio.objects
import kr8s.objects
import kubernetes.aio.client
import kubernetes.aio.config
import kubernetes.aio.watch
import kubernetes.client
import kubernetes.config
import kubernetes.dynamic
import kubernetes.watch
import lightkube
import lightkube.core.exceptions
import lightkube.generic_resource
import lightkube.models.meta_v1
import lightkube.resources.core_v1
import pykube
import pytest

from .backend import Backend
from .objects import configmap, lease, widget
from .resources import WIDGETS

pytestmark = pytest.mark.real

JSON = dict[str, Any]

CUSTOM = {"group": WIDGETS.group, "version": WIDGETS.version, "plural": WIDGETS.plural}
DEADLINE_SECONDS = 300


@pytest.fixture
def kubeconfig(backend: Backend) -> str:
    return str(backend.kubeconfig)


def soon(work: Callable[[], Any]) -> None:
    """Do it from another thread a moment later, while this one watches."""
    threading.Timer(0.2, work).start()


class TestKubernetes:
    """The official client, synchronous."""

    @pytest.fixture
    def client(self, kubeconfig: str) -> Any:
        return kubernetes.config.new_client_from_config(config_file=kubeconfig)

    def test_typed_core(self, client: Any, namespace: str) -> None:
        core = kubernetes.client.CoreV1Api(client)
        made = core.create_namespaced_config_map(namespace, configmap(namespace, "c", {"a": "1"}))
        assert made.metadata.uid
        core.patch_namespaced_config_map("c", namespace, {"data": {"b": "2"}})
        assert core.read_namespaced_config_map("c", namespace).data == {"a": "1", "b": "2"}
        listed = core.list_namespaced_config_map(namespace, field_selector="metadata.name=c")
        assert [item.metadata.name for item in listed.items] == ["c"]
        core.delete_namespaced_config_map("c", namespace)
        with pytest.raises(kubernetes.client.ApiException) as refusal:
            core.read_namespaced_config_map("c", namespace)
        assert refusal.value.status == 404

    def test_typed_pods_nodes_and_namespaces(self, client: Any, namespace: str) -> None:
        core = kubernetes.client.CoreV1Api(client)
        body = {
            "metadata": {"name": "p"},
            "spec": {
                "containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}],
                "nodeSelector": {"conformance.dlr.dev/nowhere": "true"},
            },
        }
        made = core.create_namespaced_pod(namespace, body)
        assert (made.status.phase, made.spec.restart_policy) == ("Pending", "Always")
        core.delete_namespaced_pod("p", namespace)
        core.list_node()
        assert namespace in [item.metadata.name for item in core.list_namespace().items]

    def test_custom_objects(self, client: Any, namespace: str) -> None:
        custom = kubernetes.client.CustomObjectsApi(client)
        where = {**CUSTOM, "namespace": namespace}
        made = custom.create_namespaced_custom_object(**where, body=widget(namespace, "w"))
        assert made["spec"]["size"] == 3
        custom.patch_namespaced_custom_object(**where, name="w", body={"spec": {"size": 9}})
        custom.patch_namespaced_custom_object_status(**where, name="w", body={"status": {"phase": "Done"}})
        got = custom.get_namespaced_custom_object(**where, name="w")
        assert (got["spec"]["size"], got["status"]["phase"]) == (9, "Done")
        stale = {**made, "spec": {**made["spec"], "size": 4}}
        with pytest.raises(kubernetes.client.ApiException) as refusal:
            custom.replace_namespaced_custom_object(**where, name="w", body=stale)
        assert (refusal.value.status, refusal.value.reason) == (409, "Conflict")
        assert len(custom.list_namespaced_custom_object(**where)["items"]) == 1
        custom.delete_namespaced_custom_object(**where, name="w")

    def test_leases_and_definitions(self, client: Any, namespace: str) -> None:
        coordination = kubernetes.client.CoordinationV1Api(client)
        renewed = "2026-01-02T03:04:05.123456Z"
        coordination.create_namespaced_lease(namespace, lease(namespace, "l", renewTime=renewed))
        got = coordination.read_namespaced_lease("l", namespace)
        assert got.spec.renew_time.microsecond == 123456
        definitions = kubernetes.client.ApiextensionsV1Api(client).list_custom_resource_definition()
        assert WIDGETS.group_resource in [item.metadata.name for item in definitions.items]

    def test_watch(self, client: Any, namespace: str) -> None:
        core = kubernetes.client.CoreV1Api(client)
        core.create_namespaced_config_map(namespace, configmap(namespace, "first"))
        soon(lambda: core.create_namespaced_config_map(namespace, configmap(namespace, "second")))
        seen = []
        watch = kubernetes.watch.Watch()
        for event in watch.stream(
            core.list_namespaced_config_map, namespace, timeout_seconds=DEADLINE_SECONDS
        ):
            name = event["object"].metadata.name
            if name in ("first", "second"):
                seen.append((event["type"], name))
            if name == "second":
                watch.stop()
        assert seen == [("ADDED", "first"), ("ADDED", "second")]

    def test_dynamic(self, client: Any, namespace: str, tmp_path: Path) -> None:
        dynamic = kubernetes.dynamic.DynamicClient(client, cache_file=str(tmp_path / "discovery"))
        widgets = dynamic.resources.get(api_version=WIDGETS.api_version, kind=WIDGETS.kind)
        widgets.create(body=widget(namespace, "w"), namespace=namespace)
        widgets.patch(
            name="w",
            namespace=namespace,
            body={"spec": {"size": 9}},
            content_type="application/merge-patch+json",
        )
        widgets.status.patch(
            name="w",
            namespace=namespace,
            body={"status": {"phase": "Done"}},
            content_type="application/merge-patch+json",
        )
        got = widgets.get(name="w", namespace=namespace)
        assert (got.spec.size, got.status.phase) == (9, "Done")
        events = widgets.watch(namespace=namespace, timeout=1)
        assert [event["object"].metadata.name for event in events] == ["w"]
        widgets.delete(name="w", namespace=namespace)
        with pytest.raises(kubernetes.dynamic.exceptions.NotFoundError):
            widgets.get(name="w", namespace=namespace)


class TestKubernetesAio:
    """The official client's asyncio half."""

    async def test_crud_and_watch(self, kubeconfig: str, namespace: str) -> None:
        async with await kubernetes.aio.config.new_client_from_config(config_file=kubeconfig) as client:
            core = kubernetes.aio.client.CoreV1Api(client)
            custom = kubernetes.aio.client.CustomObjectsApi(client)
            where = {**CUSTOM, "namespace": namespace}
            await core.create_namespaced_config_map(namespace, configmap(namespace, "c", {"a": "1"}))
            assert (await core.read_namespaced_config_map("c", namespace)).data == {"a": "1"}
            made = await custom.create_namespaced_custom_object(**where, body=widget(namespace, "w"))
            assert made["metadata"]["generation"] == 1
            got = await custom.get_namespaced_custom_object(**where, name="w")
            assert got == made
            watch = kubernetes.aio.watch.Watch()
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                watch.stream(
                    custom.list_namespaced_custom_object, **where, timeout_seconds=DEADLINE_SECONDS
                ) as events,
            ):
                async for event in events:
                    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "w")
                    break
            await custom.delete_namespaced_custom_object(**where, name="w")
            with pytest.raises(kubernetes.aio.client.ApiException) as refusal:
                await custom.get_namespaced_custom_object(**where, name="w")
            assert refusal.value.status == 404


class TestPykube:
    """pykube-ng, which the e2e tests use."""

    @pytest.fixture
    def client(self, kubeconfig: str) -> Any:
        return pykube.HTTPClient(pykube.KubeConfig.from_file(kubeconfig), timeout=DEADLINE_SECONDS)

    def test_crud(self, client: Any, namespace: str) -> None:
        kind = pykube.object_factory(client, WIDGETS.api_version, WIDGETS.kind)
        made = kind(client, widget(namespace, "w", labels={"a": "b"}))
        made.create()
        assert made.obj["spec"]["size"] == 3
        made.patch({"status": {"phase": "Done"}}, subresource="status")
        made.obj["spec"]["size"] = 9
        made.update()
        found = kind.objects(client, namespace=namespace).filter(selector={"a": "b"}).get()
        assert (found.obj["spec"]["size"], found.obj["status"]["phase"]) == (9, "Done")
        assert not list(kind.objects(client, namespace=namespace).filter(selector={"a": "c"}))
        found.delete()
        with pytest.raises(pykube.exceptions.ObjectDoesNotExist):
            kind.objects(client, namespace=namespace).get_by_name("w")

    def test_watch(self, client: Any, namespace: str) -> None:
        maps = pykube.ConfigMap.objects(client, namespace=namespace)
        soon(lambda: pykube.ConfigMap(client, configmap(namespace, "later")).create())
        for event in maps.watch():
            if event.object.name == "later":
                assert event.type == "ADDED"
                break


class TestLightkube:
    def test_crud_and_watch(self, kubeconfig: str, namespace: str) -> None:
        config = lightkube.KubeConfig.from_file(kubeconfig)
        client = lightkube.Client(config=config.get(), namespace=namespace, timeout=DEADLINE_SECONDS)
        kind = lightkube.generic_resource.create_namespaced_resource(
            WIDGETS.group, WIDGETS.version, WIDGETS.kind, WIDGETS.plural
        )
        made = client.create(kind.from_dict(widget(namespace, "w")))
        assert made.spec["size"] == 3
        client.patch(kind, "w", {"spec": {"size": 9}}, patch_type=lightkube.types.PatchType.MERGE)
        client.patch(
            kind.Status, "w", {"status": {"phase": "Done"}}, patch_type=lightkube.types.PatchType.MERGE
        )
        got = client.get(kind, "w")
        assert (got.spec["size"], got.status["phase"]) == (9, "Done")
        for kind_of_event, seen in client.watch(kind):
            assert (kind_of_event, seen.metadata.name) == ("ADDED", "w")
            break
        config_maps = lightkube.resources.core_v1.ConfigMap
        client.create(
            config_maps(
                metadata=lightkube.models.meta_v1.ObjectMeta(name="c", labels={"a": "b"}), data={"x": "y"}
            )
        )
        assert [item.data for item in client.list(config_maps, labels={"a": "b"})] == [{"x": "y"}]
        client.delete(kind, "w")
        with pytest.raises(lightkube.core.exceptions.ApiError) as refusal:
            client.get(kind, "w")
        assert refusal.value.status.code == 404


class TestKr8s:
    async def test_crud_and_watch(self, kubeconfig: str, namespace: str) -> None:
        client = await kr8s.asyncio.api(kubeconfig=kubeconfig, namespace=namespace)
        kind = kr8s.asyncio.objects.new_class(
            kind=WIDGETS.kind,
            version=WIDGETS.api_version,
            plural=WIDGETS.plural,
            namespaced=True,
            asyncio=True,
        )
        made = await kind(widget(namespace, "w"), api=client)
        await made.create()
        await made.patch({"spec": {"size": 9}})
        await made.patch({"status": {"phase": "Done"}}, subresource="status")
        got = await kind.get("w", namespace=namespace, api=client)
        assert (got.spec.size, got.status.phase) == (9, "Done")
        async with asyncio.timeout(DEADLINE_SECONDS):
            async for event, seen in client.watch(kind, namespace=namespace):
                assert (event, seen.name) == ("ADDED", "w")
                break
        await got.delete()
        with pytest.raises(kr8s.NotFoundError):
            await kind.get("w", namespace=namespace, api=client, timeout=0)
