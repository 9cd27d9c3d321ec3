"""The Pod Security Standards: what each level forbids, by the fields that are named."""

from __future__ import annotations

from typing import Any

import pytest

from localcluster.pod_security import Level, violations

GOOD: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""A container's securityContext that every level takes."""


def spec(context: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "c", "securityContext": GOOD | (context or {})}], **fields}


def container(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "c", "securityContext": GOOD, **fields}]}


def found(level: Level, pod: dict[str, Any]) -> list[str]:
    return [str(violation) for violation in violations(level, pod)]


CONTEXT = "container c: securityContext."
BASELINE_FORBIDS = [
    (spec(hostNetwork=True, hostIPC=True), "host namespaces (hostNetwork, hostIPC)"),
    (container(ports=[{"hostPort": 80}]), "hostPort (container c: ports.hostPort)"),
    (spec({"privileged": True}), f"privileged ({CONTEXT}privileged)"),
    (spec({"procMount": "Unmasked"}), f"procMount ({CONTEXT}procMount)"),
    (spec({"seLinuxOptions": {"user": "u"}}), f"seLinuxOptions ({CONTEXT}seLinuxOptions)"),
    (spec({"seccompProfile": {"type": "Unconfined"}}), f"seccompProfile ({CONTEXT}seccompProfile.type)"),
    (spec(securityContext={"sysctls": [{"name": "kernel.msgmax"}]}), "forbidden sysctls (kernel.msgmax)"),
    (
        spec(securityContext={"appArmorProfile": {"type": "Unconfined"}}),
        "forbidden AppArmor profile (pod: securityContext.appArmorProfile.type)",
    ),
]
RESTRICTED_FORBIDS = [
    (
        spec({"allowPrivilegeEscalation": None}),
        f"allowPrivilegeEscalation != false ({CONTEXT}allowPrivilegeEscalation)",
    ),
    (spec({"capabilities": {}}), f"unrestricted capabilities ({CONTEXT}capabilities.drop)"),
    (spec(volumes=[{"name": "v", "nfs": {}}]), "restricted volume types (volume v)"),
    (spec({"runAsNonRoot": None}), f"runAsNonRoot != true ({CONTEXT}runAsNonRoot)"),
    (spec({"runAsUser": 0}), f"runAsUser=0 ({CONTEXT}runAsUser)"),
    (spec({"seccompProfile": None}), f"seccompProfile ({CONTEXT}seccompProfile.type)"),
]


@pytest.mark.parametrize(("pod", "words"), BASELINE_FORBIDS)
def test_what_baseline_forbids_restricted_does_too(pod: dict[str, Any], words: str) -> None:
    assert found(Level.PRIVILEGED, pod) == []
    assert found(Level.BASELINE, pod) == found(Level.RESTRICTED, pod) == [words]


@pytest.mark.parametrize(("pod", "words"), RESTRICTED_FORBIDS)
def test_what_restricted_alone_forbids(pod: dict[str, Any], words: str) -> None:
    assert found(Level.BASELINE, pod) == []
    assert found(Level.RESTRICTED, pod) == [words]


def test_capabilities_may_be_added_as_far_as_the_level_goes() -> None:
    def adding(name: str) -> dict[str, Any]:
        return spec({"capabilities": {"drop": ["ALL"], "add": [name]}})

    bad = {name: [bool(found(level, adding(name))) for level in Level] for name in ("CHOWN", "BPF")}
    assert bad == {"CHOWN": [False, False, True], "BPF": [False, True, True]}
    assert found(Level.RESTRICTED, adding("NET_BIND_SERVICE")) == []


def test_the_pods_own_settings_count_for_its_containers() -> None:
    careful = {key: GOOD[key] for key in ("runAsNonRoot", "seccompProfile")}
    rest = {key: value for key, value in GOOD.items() if key not in careful}
    pod = {"containers": [{"name": "c", "securityContext": rest}], "securityContext": careful}
    assert found(Level.RESTRICTED, pod) == []


def test_init_containers_count_and_a_user_namespace_makes_root_harmless() -> None:
    bad = {"name": "i", "securityContext": {"privileged": True}}
    assert found(Level.BASELINE, spec(initContainers=[bad])) == [
        "privileged (container i: securityContext.privileged)"
    ]
    assert found(Level.RESTRICTED, spec({"runAsUser": 0, "runAsNonRoot": False}, hostUsers=False)) == []
