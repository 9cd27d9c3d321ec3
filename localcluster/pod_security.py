"""The Pod Security Standards, in their newest form: what the levels baseline and restricted forbid a Pod.

https://kubernetes.io/docs/concepts/security/pod-security-standards/. Left out is what only Windows, ephemeral
containers or annotations of old versions have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from localcluster.resource import JSON


class Level(Enum):
    """Levels of Pod security, from unrestricted to restricted."""

    PRIVILEGED = "privileged"
    BASELINE = "baseline"
    RESTRICTED = "restricted"


@dataclass(frozen=True)
class Violation:
    """A check that a Pod fails, and the fields that make it fail."""

    reason: str
    fields: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.reason} ({', '.join(self.fields)})"


_PROFILES = ("RuntimeDefault", "Localhost")
_DEFAULT_CAPABILITIES = frozenset(
    {"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"}
    | {"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}
)
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_IP, _TCP = "net.ipv4.ip_", "net.ipv4.tcp_"
_SYSCTLS = frozenset(
    {"kernel.shm_rmid_forced", "net.ipv4.ping_group_range", f"{_IP}local_port_range"}
    | {f"{_IP}unprivileged_port_start", f"{_IP}local_reserved_ports", f"{_TCP}syncookies"}
    | {f"{_TCP}keepalive_time", f"{_TCP}fin_timeout", f"{_TCP}keepalive_intvl", f"{_TCP}keepalive_probes"}
    | {f"{_TCP}rmem", f"{_TCP}wmem", f"{_TCP}slow_start_after_idle", f"{_TCP}notsent_lowat"}
)
_VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim"}
    | {"projected", "secret"}
)


def _containers(spec: JSON) -> list[JSON]:
    return [each for part in ("initContainers", "containers") for each in spec.get(part) or ()]


def _at(value: Any, *path: str) -> Any:
    for key in path:
        value = (value or {}).get(key)
    return value


def _setters(spec: JSON, *path: str) -> Iterator[tuple[str, Any]]:
    """A field of securityContext: the Pod's value, and then each container's, by who sets it."""
    yield "pod", _at(spec, "securityContext", *path)
    yield from _of_containers(spec, *path)


def _of_containers(spec: JSON, *path: str) -> Iterator[tuple[str, Any]]:
    for container in _containers(spec):
        yield f"container {container['name']}", _at(container, "securityContext", *path)


def _bad(setters: Iterator[tuple[str, Any]], field: str, is_bad: Callable[[Any], bool]) -> Iterator[str]:
    return (f"{setter}: securityContext.{field}" for setter, value in setters if is_bad(value))


def _missing(spec: JSON, field: str, path: tuple[str, ...], is_good: Callable[[Any], bool]) -> Iterator[str]:
    """Containers that set nothing good, where the Pod sets nothing good for them either."""
    if not is_good(_at(spec, "securityContext", *path)):
        yield from _bad(_of_containers(spec, *path), field, lambda value: not is_good(value))


def _is_bad_profile(value: Any) -> bool:
    return value is not None and value not in _PROFILES


def _is_bad_selinux(value: JSON | None) -> bool:
    options = value or {}
    return options.get("type", "") not in _SELINUX_TYPES or any(map(options.get, ("user", "role")))


def _host_ports(spec: JSON) -> Iterator[str]:
    for container in _containers(spec):
        if any(port.get("hostPort") for port in container.get("ports") or ()):
            yield f"container {container['name']}: ports.hostPort"


def _proc_mount(spec: JSON) -> Iterator[str]:
    if spec.get("hostUsers") is not False:
        unmasked = _of_containers(spec, "procMount")
        yield from _bad(unmasked, "procMount", lambda value: value not in (None, "Default"))


def _sysctls(spec: JSON) -> Iterator[str]:
    for each in _at(spec, "securityContext", "sysctls") or ():
        if each["name"] not in _SYSCTLS:
            yield each["name"]


def _added(allowed: frozenset[str]) -> Callable[[JSON], Iterator[str]]:
    def check(spec: JSON) -> Iterator[str]:
        added = _of_containers(spec, "capabilities", "add")
        return _bad(added, "capabilities.add", lambda value: bool(set(value or ()) - allowed))

    return check


def _capabilities(spec: JSON) -> Iterator[str]:
    dropped = _of_containers(spec, "capabilities", "drop")
    yield from _bad(dropped, "capabilities.drop", lambda value: "ALL" not in (value or ()))
    yield from _added(frozenset({"NET_BIND_SERVICE"}))(spec)


def _volumes(spec: JSON) -> Iterator[str]:
    for volume in spec.get("volumes") or ():
        if not any(volume.get(kind) is not None for kind in _VOLUMES):
            yield f"volume {volume['name']}"


def _non_root(spec: JSON) -> Iterator[str]:
    if spec.get("hostUsers") is not False:
        yield from _bad(_setters(spec, "runAsNonRoot"), "runAsNonRoot", lambda value: value is False)
        yield from _missing(spec, "runAsNonRoot", ("runAsNonRoot",), bool)


def _user(spec: JSON) -> Iterator[str]:
    if spec.get("hostUsers") is not False:
        yield from _bad(_setters(spec, "runAsUser"), "runAsUser", lambda value: value == 0)


def _seccomp(spec: JSON) -> Iterator[str]:
    return _bad(_setters(spec, "seccompProfile", "type"), "seccompProfile.type", _is_bad_profile)


def _some_seccomp(spec: JSON) -> Iterator[str]:
    path = ("seccompProfile", "type")
    yield from _seccomp(spec)
    yield from _missing(spec, "seccompProfile.type", path, lambda value: value in _PROFILES)


Check = Callable[[JSON], Iterator[str]]
_BASELINE: dict[str, Check] = {
    "host namespaces": lambda spec: (f for f in ("hostNetwork", "hostPID", "hostIPC") if spec.get(f)),
    "hostPath volumes": lambda spec: (
        f"volume {each['name']}" for each in spec.get("volumes") or () if each.get("hostPath") is not None
    ),
    "hostPort": _host_ports,
    "privileged": lambda spec: _bad(_of_containers(spec, "privileged"), "privileged", bool),
    "non-default capabilities": _added(_DEFAULT_CAPABILITIES),
    "procMount": _proc_mount,
    "forbidden AppArmor profile": lambda spec: _bad(
        _setters(spec, "appArmorProfile", "type"), "appArmorProfile.type", _is_bad_profile
    ),
    "seLinuxOptions": lambda spec: _bad(_setters(spec, "seLinuxOptions"), "seLinuxOptions", _is_bad_selinux),
    "forbidden sysctls": _sysctls,
    "seccompProfile": _seccomp,
}
_RESTRICTED: dict[str, Check] = _BASELINE | {
    "allowPrivilegeEscalation != false": lambda spec: _bad(
        _of_containers(spec, "allowPrivilegeEscalation"),
        "allowPrivilegeEscalation",
        lambda value: value is not False,
    ),
    "unrestricted capabilities": _capabilities,
    "restricted volume types": _volumes,
    "runAsNonRoot != true": _non_root,
    "runAsUser=0": _user,
    "seccompProfile": _some_seccomp,
}
_CHECKS = {Level.PRIVILEGED: {}, Level.BASELINE: _BASELINE, Level.RESTRICTED: _RESTRICTED}


def violations(level: Level, spec: JSON) -> list[Violation]:
    """Return the violations of a level by the spec of a Pod or of a Pod template."""
    found = {reason: tuple(dict.fromkeys(check(spec))) for reason, check in _CHECKS[level].items()}
    return [Violation(reason, fields) for reason, fields in found.items() if fields]
