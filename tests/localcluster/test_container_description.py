"""From a container's description to its environment, command line, files and mounts; and small parts beside."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from localcluster.kubelet.addresses import AddressPool
from localcluster.kubelet.devices import DevicePool
from localcluster.kubelet.environment import Surroundings, command_line, container_environment, expand
from localcluster.kubelet.errors import ConfigError, MountError
from localcluster.kubelet.grace import Grace
from localcluster.kubelet.sources import Source, SourceKind, references
from localcluster.kubelet.volumes import container_mounts, prepare_volume, volume_files

JSON = dict[str, Any]
SETTINGS = Source(SourceKind.CONFIG_MAP, "settings")
LOGIN = Source(SourceKind.SECRET, "login")


def surroundings(**spec: Any) -> Surroundings:
    metadata = {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "labels": {"app": "x", "tier": 'a"b'},
        "annotations": {"note": "n"},
    }
    pod = {"metadata": metadata, "spec": {"nodeName": "node-1", "containers": [{"name": "main"}], **spec}}
    sources = {SETTINGS: {"KEY": b"value", "not a name": b"x"}, LOGIN: {"word": b"secret"}}
    return Surroundings(pod, "127.9.9.9", sources, {"cpu": "4", "memory": "8Gi"}, {"GIVEN": "yes"})


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)-$(B)", "1-2"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
    ],
)
def test_references_are_expanded_as_in_kubernetes(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expanded


def test_later_variables_see_and_override_earlier_ones() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "settings"}}, {"prefix": "S_", "secretRef": {"name": "login"}}],
        "env": [
            {"name": "KEY", "value": "own"},
            {"name": "SEEN", "value": "$(KEY) $(GIVEN) $(S_word) $(LATER)"},
        ],
    }
    variables = container_environment(container, surroundings())
    assert variables["KEY"] == "own"
    assert variables["SEEN"] == "own yes secret $(LATER)"
    assert "not a name" not in variables


@pytest.mark.parametrize(
    ("value_from", "message"),
    [
        ({"configMapKeyRef": {"name": "no", "key": "k"}}, 'configmap "no" not found'),
        ({"secretKeyRef": {"name": "login", "key": "k"}}, "couldn't find key k in Secret ns/login"),
        ({"fieldRef": {"fieldPath": "status.phase"}}, "fieldRef status.phase is not one"),
    ],
)
def test_what_is_missing_is_named(value_from: JSON, message: str) -> None:
    container = {"env": [{"name": "X", "valueFrom": value_from}]}
    with pytest.raises(ConfigError, match=message):
        container_environment(container, surroundings())


def test_a_container_without_a_command_says_that_images_are_ignored() -> None:
    with pytest.raises(
        ConfigError, match='container "main" has no command: the embedded cluster ignores images'
    ):
        command_line({"name": "main", "image": "pytorch"}, {})
    assert command_line({"command": ["a"], "args": ["$(X)"]}, {"X": "1"}) == ["a", "1"]


def test_all_references_of_a_pod_are_found() -> None:
    around = surroundings(
        containers=[
            {
                "name": "main",
                "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "k"}}}],
                "envFrom": [{"secretRef": {"name": "b"}}],
            }
        ],
        volumes=[
            {"name": "1", "configMap": {"name": "c"}},
            {"name": "2", "secret": {"secretName": "d"}},
            {"name": "3", "projected": {"sources": [{"secret": {"name": "e"}}]}},
        ],
    )
    assert {source.name for source in references(around.pod)} == set("abcde")


@pytest.mark.parametrize("path", ["/absolute", "a/../../b"])
def test_paths_that_lead_out_of_a_volume_are_refused(path: str) -> None:
    volume = {"name": "v", "configMap": {"name": "settings", "items": [{"key": "KEY", "path": path}]}}
    with pytest.raises(MountError, match="leads out of the volume"):
        volume_files(volume, surroundings(), {})
    container = {"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": path}]}
    with pytest.raises(ConfigError, match="leads out of the volume"):
        container_mounts(container, {"v": Path("/somewhere")}, {})


def test_shared_memory_is_the_hosts_own() -> None:
    container = {"volumeMounts": [{"name": "v", "mountPath": "/dev/shm/"}, {"name": "v", "mountPath": "/v"}]}
    (mount,) = container_mounts(container, {"v": Path("/somewhere")}, {})
    assert mount["target"] == "/v"


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"name": "v", "nfs": {}}, "nfs volumes are not supported by the embedded cluster"),
        ({"name": "v", "hostPath": {"path": "/no/such"}}, "hostPath /no/such: No such file or directory"),
        ({"name": "v", "hostPath": {"path": "/etc", "type": "File"}}, "/etc is not a File"),
    ],
)
def test_volumes_that_cannot_be_had_say_why(volume: JSON, message: str, tmp_path: Path) -> None:
    with pytest.raises(MountError, match=message):
        prepare_volume(volume, tmp_path / "v", None)


def test_addresses_are_unique_and_their_own_by_cluster() -> None:
    pool = AddressPool("one", ["127.1.1.1"])
    taken = [pool.take() for _ in range(1000)]
    assert len(set(taken)) == 1000
    assert all(address.startswith("127.") for address in taken)
    pool.free(taken[0])
    assert pool.take() not in taken


def test_each_container_sees_its_own_devices() -> None:
    pool = DevicePool(first=4, count=4)
    wants = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    assert pool.take("a/main", wants)["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert pool.take("b/main", wants)["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert pool.take("a/main", wants)["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert pool.take("c/main", {})["CUDA_VISIBLE_DEVICES"] == ""
    pool.give_back("a/")
    assert pool.take("d/main", wants)["CUDA_VISIBLE_DEVICES"] == "4,5"


async def test_a_second_deletion_shortens_the_grace() -> None:
    loop = asyncio.get_running_loop()
    grace = Grace(6000)
    waiting = asyncio.create_task(grace.allows(loop.create_future()))
    await asyncio.sleep(1)
    grace.shorten(5)
    grace.shorten(3000)
    assert await waiting is False
    assert loop.time() == 6
