"""The Pod Security Standards, check by check: what each forbids, since when, and its words."""

from __future__ import annotations

from typing import Any

import pytest

from localcluster.pod_security import CHECKS, LATEST_MINOR, Level, Standard, violations

BASELINE = Standard(Level.BASELINE)
RESTRICTED = Standard(Level.RESTRICTED)
GOOD: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""A container's securityContext that every level takes."""


def spec(*contexts: dict[str, Any] | None, **fields: Any) -> dict[str, Any]:
    """A Pod of the containers c0, c1, ..., each with a securityContext or none."""
    containers = [
        {"name": f"c{index}", **({} if context is None else {"securityContext": context})}
        for index, context in enumerate(contexts)
    ]
    return {"containers": containers, **fields}


def fields(**of_container: Any) -> dict[str, Any]:
    return {"containers": [{"name": "c0", "securityContext": GOOD, **of_container}]}


def found(standard: Standard, pod: dict[str, Any], **annotations: str) -> list[str]:
    return [str(violation) for violation in violations(standard, {"annotations": annotations}, pod)]


def test_a_careful_pod_is_restricted_and_a_plain_one_baseline() -> None:
    assert found(RESTRICTED, spec(GOOD, GOOD)) == []
    assert found(BASELINE, spec(None)) == []
    assert found(RESTRICTED, spec(None)) == [
        'allowPrivilegeEscalation != false (container "c0" must set '
        "securityContext.allowPrivilegeEscalation=false)",
        'unrestricted capabilities (container "c0" must set securityContext.capabilities.drop=["ALL"])',
        'runAsNonRoot != true (pod or container "c0" must set securityContext.runAsNonRoot=true)',
        'seccompProfile (pod or container "c0" must set securityContext.seccompProfile.type to '
        '"RuntimeDefault" or "Localhost")',
    ]


def test_nothing_is_forbidden_to_the_privileged() -> None:
    assert found(Standard(), spec({"privileged": True}, hostNetwork=True)) == []


def test_every_kind_of_container_counts() -> None:
    bad = {"securityContext": {"privileged": True}}
    pod = {
        "containers": [{"name": "c", **bad}],
        "initContainers": [{"name": "i", **bad}],
        "ephemeralContainers": [{"name": "e", **bad}],
    }
    assert found(BASELINE, pod) == [
        'privileged (containers "i", "c", "e" must not set securityContext.privileged=true)'
    ]


BASELINE_FORBIDS: list[tuple[dict[str, Any], str]] = [
    (
        spec({"appArmorProfile": {"type": "Unconfined"}}),
        'forbidden AppArmor profile (container "c0" must not set AppArmor profile type to "Unconfined")',
    ),
    (
        spec({"appArmorProfile": {"type": "x"}}, securityContext={"appArmorProfile": {"type": "Unconfined"}}),
        'forbidden AppArmor profiles (pod and container "c0" must not set AppArmor profile type to '
        '"Unconfined", "x")',
    ),
    (
        spec({"capabilities": {"add": ["NET_RAW", "CHOWN"]}}, {"capabilities": {"add": ["BPF"]}}),
        'non-default capabilities (containers "c0", "c1" must not include "BPF", "NET_RAW" in '
        "securityContext.capabilities.add)",
    ),
    (
        spec(None, hostNetwork=True, hostPID=True, hostIPC=True),
        "host namespaces (hostNetwork=true, hostPID=true, hostIPC=true)",
    ),
    (
        spec(None, volumes=[{"name": "a", "hostPath": {"path": "/"}}, {"name": "b", "emptyDir": {}}]),
        'hostPath volumes (volume "a")',
    ),
    (
        fields(ports=[{"containerPort": 1, "hostPort": 80}, {"containerPort": 2, "hostPort": 443}]),
        'hostPort (container "c0" uses hostPorts 443, 80)',
    ),
    (
        fields(
            livenessProbe={"httpGet": {"port": 1, "host": "b"}},
            lifecycle={"preStop": {"tcpSocket": {"host": "a"}}},
        ),
        'probe or lifecycle host (container "c0" uses probe or lifecycle hosts "a", "b")',
    ),
    (
        spec({"privileged": True}),
        'privileged (container "c0" must not set securityContext.privileged=true)',
    ),
    (
        spec({"procMount": "Unmasked"}, {"procMount": "Default"}),
        'procMount (container "c0" must not set securityContext.procMount to "Unmasked")',
    ),
    (
        spec(
            {"seLinuxOptions": {"type": "spc_t", "user": "u"}},
            securityContext={"seLinuxOptions": {"role": "r"}},
        ),
        'seLinuxOptions (pod and container "c0" set forbidden securityContext.seLinuxOptions: type "spc_t"; '
        "user may not be set; role may not be set)",
    ),
    (
        spec({"seccompProfile": {"type": "Unconfined"}}),
        'seccompProfile (container "c0" must not set securityContext.seccompProfile.type to "Unconfined")',
    ),
    (
        spec(
            None,
            securityContext={"sysctls": [{"name": "a"}, {"name": "net.ipv4.tcp_syncookies"}, {"name": "b"}]},
        ),
        "forbidden sysctls (a, b)",
    ),
    (
        spec(
            {"windowsOptions": {"hostProcess": True}},
            securityContext={"windowsOptions": {"hostProcess": True}},
        ),
        'hostProcess (pod and container "c0" must not set securityContext.windowsOptions.hostProcess=true)',
    ),
]
RESTRICTED_FORBIDS: list[tuple[dict[str, Any], str]] = [
    (
        spec({**GOOD, "allowPrivilegeEscalation": True}, GOOD),
        'allowPrivilegeEscalation != false (container "c0" must set '
        "securityContext.allowPrivilegeEscalation=false)",
    ),
    (
        spec({**GOOD, "capabilities": {"drop": ["KILL"], "add": ["CHOWN", "NET_BIND_SERVICE"]}}),
        'unrestricted capabilities (container "c0" must set securityContext.capabilities.drop=["ALL"]; '
        'container "c0" must not include "CHOWN" in securityContext.capabilities.add)',
    ),
    (
        spec({**GOOD, "procMount": "Unmasked"}, hostUsers=False),
        'procMount (container "c0" must not set securityContext.procMount to "Unmasked")',
    ),
    (
        spec(GOOD, volumes=[{"name": "a", "hostPath": {}}, {"name": "b", "nfs": {}}, {"name": "c"}]),
        'restricted volume types (volumes "a", "b", "c" use restricted volume types "hostPath", "nfs", "unknown")',
    ),
    (
        spec({**GOOD, "runAsNonRoot": False}, securityContext={"runAsNonRoot": False}),
        'runAsNonRoot != true (pod and container "c0" must not set securityContext.runAsNonRoot=false)',
    ),
    (
        spec({**GOOD, "runAsUser": 0}, securityContext={"runAsUser": 1}),
        'runAsUser=0 (container "c0" must not set runAsUser=0)',
    ),
    (
        spec({**GOOD, "seccompProfile": {"type": "Unconfined"}}),
        'seccompProfile (container "c0" must not set securityContext.seccompProfile.type to "Unconfined")',
    ),
]


@pytest.mark.parametrize(("pod", "words"), BASELINE_FORBIDS, ids=lambda value: str(value)[:20])
def test_baseline_forbids(pod: dict[str, Any], words: str) -> None:
    assert found(BASELINE, pod) == [words]


@pytest.mark.parametrize(("pod", "words"), RESTRICTED_FORBIDS, ids=lambda value: str(value)[:20])
def test_restricted_forbids_more(pod: dict[str, Any], words: str) -> None:
    assert found(RESTRICTED, pod) == [words]


@pytest.mark.parametrize(("pod", "words"), BASELINE_FORBIDS, ids=lambda value: str(value)[:20])
def test_what_baseline_forbids_restricted_forbids(pod: dict[str, Any], words: str) -> None:
    reason = words.partition(" (")[0]
    instead = {
        "non-default capabilities": "unrestricted capabilities",
        "hostPath volumes": "restricted volume types",
    }
    reasons = [violation.reason for violation in violations(RESTRICTED, {}, pod)]
    assert reasons.count(instead.get(reason, reason)) == 1


def test_annotations_of_app_armor_and_of_old_seccomp() -> None:
    annotation = "container.apparmor.security.beta.kubernetes.io/"
    allowed = {annotation + "a": "runtime/default", annotation + "b": "localhost/x", annotation + "c": ""}
    assert found(BASELINE, spec(None), **allowed) == []
    assert found(BASELINE, spec(None), **{annotation + "c0": "unconfined"}) == [
        f'forbidden AppArmor profile (annotation must not set AppArmor profile type to "{annotation}c0="unconfined"")'
    ]
    seccomp = {
        "seccomp.security.alpha.kubernetes.io/pod": "unconfined",
        "container.seccomp.security.alpha.kubernetes.io/c0": "docker/default",
    }
    assert found(BASELINE, spec(None), **seccomp) == []
    assert found(Standard(Level.BASELINE, 18), spec(None), **seccomp) == [
        'seccompProfile (forbidden annotation seccomp.security.alpha.kubernetes.io/pod="unconfined")'
    ]


@pytest.mark.parametrize(
    ("level", "pod", "since"),
    [
        (Level.BASELINE, fields(startupProbe={"tcpSocket": {"host": "a"}}), 34),
        (Level.RESTRICTED, spec({**GOOD, "allowPrivilegeEscalation": None}), 8),
        (Level.RESTRICTED, spec({**GOOD, "capabilities": None}), 22),
        (Level.RESTRICTED, spec({**GOOD, "runAsUser": 0}), 23),
        (Level.RESTRICTED, spec({**GOOD, "seccompProfile": None}), 19),
    ],
)
def test_a_check_holds_from_its_version_on(level: Level, pod: dict[str, Any], since: int) -> None:
    assert found(Standard(level, since - 1), pod) == []
    assert len(found(Standard(level, since), pod)) == len(found(Standard(level), pod)) == 1


@pytest.mark.parametrize(
    ("level", "pod", "until"),
    [
        (Level.BASELINE, spec({"seLinuxOptions": {"type": "container_engine_t"}}), 31),
        (Level.BASELINE, spec({"procMount": "Unmasked"}, hostUsers=False), 35),
        (Level.RESTRICTED, spec({**GOOD, "runAsNonRoot": False}, hostUsers=False), 35),
        (Level.RESTRICTED, spec({**GOOD, "runAsUser": 0}, hostUsers=False), 35),
        (Level.RESTRICTED, spec({**GOOD, "allowPrivilegeEscalation": None}, os={"name": "windows"}), 25),
        (Level.RESTRICTED, spec({**GOOD, "capabilities": None}, os={"name": "windows"}), 25),
        (Level.RESTRICTED, spec({**GOOD, "seccompProfile": None}, os={"name": "windows"}), 25),
        *(
            (Level.BASELINE, spec(None, securityContext={"sysctls": [{"name": name}]}), until)
            for name, until in (
                ("net.ipv4.ip_local_reserved_ports", 27),
                ("net.ipv4.tcp_fin_timeout", 29),
                ("net.ipv4.tcp_wmem", 32),
                ("net.ipv4.tcp_notsent_lowat", 37),
            )
        ),
    ],
)
def test_what_was_forbidden_and_is_allowed_from_a_version_on(
    level: Level, pod: dict[str, Any], until: int
) -> None:
    assert len(found(Standard(level, until - 1), pod)) == 1
    assert found(Standard(level, until), pod) == found(Standard(level), pod) == []


def test_a_version_to_come_is_the_newest_known() -> None:
    pod = spec({**GOOD, "seccompProfile": None})
    assert found(Standard(Level.RESTRICTED, LATEST_MINOR + 50), pod) == found(RESTRICTED, pod)


def test_the_pods_own_context_stands_in_for_its_containers() -> None:
    context = {"runAsNonRoot": True, "seccompProfile": {"type": "Localhost", "localhostProfile": "x"}}
    bare = {key: value for key, value in GOOD.items() if key not in context}
    assert found(RESTRICTED, spec(bare, securityContext=context)) == []


def test_checks_are_reported_in_kubernetes_order() -> None:
    for level in (Level.BASELINE, Level.RESTRICTED):
        names = [check.name for check in CHECKS if check.level is level]
        assert names == sorted(names)
