"""The Pod Security Standards: what the levels baseline and restricted forbid a Pod, in Kubernetes' own words.

https://kubernetes.io/docs/concepts/security/pod-security-standards/. The table at the end lists the checks,
each form with the minor version of Kubernetes that brought it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import Any

from localcluster.resource import JSON

LATEST_MINOR = 37


class Level(Enum):
    """What a Pod may do, from everything to little."""

    PRIVILEGED = "privileged"
    BASELINE = "baseline"
    RESTRICTED = "restricted"

    @property
    def strictness(self) -> int:
        return list(Level).index(self)


@dataclass(frozen=True)
class Standard:
    """A level as of a minor version of Kubernetes; the newest where that is None."""

    level: Level = Level.PRIVILEGED
    minor: int | None = None

    def __str__(self) -> str:
        version = "latest" if self.minor is None else f"v1.{self.minor}"
        return f"{self.level.value}:{version}"


PRIVILEGED = Standard()


@dataclass(frozen=True)
class Violation:
    """A check that a Pod fails."""

    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


@dataclass(frozen=True)
class PodView:
    """What the checks read of a Pod."""

    annotations: JSON
    spec: JSON

    @property
    def containers(self) -> list[JSON]:
        parts = ("initContainers", "containers", "ephemeralContainers")
        return [container for part in parts for container in self.spec.get(part) or ()]

    @property
    def is_windows(self) -> bool:
        return bool(_at(self.spec, "os", "name") == "windows")

    @property
    def has_user_namespace(self) -> bool:
        return self.spec.get("hostUsers") is False


def violations(standard: Standard, metadata: JSON, spec: JSON) -> list[Violation]:
    """What a Pod, or the template of one, does against a standard."""
    pod = PodView(metadata.get("annotations") or {}, spec)
    minor = LATEST_MINOR if standard.minor is None else min(standard.minor, LATEST_MINOR)
    found = (run(pod) for run in _checks(standard.level, minor))
    return [violation for violation in found if violation is not None]


# --- words ---


def _quoted(items: Iterable[str]) -> str:
    return ", ".join(f'"{item}"' for item in items)


def _plural(singular: str, count: int) -> str:
    return singular if count == 1 else f"{singular}s"


def _containers(names: list[str]) -> str:
    return f"{_plural('container', len(names))} {_quoted(names)}"


def _uses(thing: str, names: list[str], what: str, values: Iterable[str], *, quote: bool = True) -> str:
    used = sorted(set(values))
    shown = _quoted(used) if quote else ", ".join(used)
    subject = f"{_plural(thing, len(names))} {_quoted(names)}"
    return f"{subject} {'uses' if len(names) == 1 else 'use'} {_plural(what, len(used))} {shown}"


# --- fields ---


def _at(value: Any, *path: str) -> Any:
    for key in path:
        value = (value or {}).get(key)
    return value


@dataclass(frozen=True)
class _Setters:
    """A field of securityContext, by who sets it: the Pod, and its containers in their order."""

    of_pod: Any
    of_containers: tuple[tuple[str, Any], ...]

    def bad(self, is_bad: Callable[[Any], bool]) -> tuple[list[str], set[Any]]:
        """The Pod and containers that set a bad value, and the values."""
        values = [value for _, value in self.of_containers if is_bad(value)]
        names = [name for name, value in self.of_containers if is_bad(value)]
        subjects = ["pod"] if is_bad(self.of_pod) else []
        if names:
            subjects.append(_containers(names))
        return subjects, {*values, *([self.of_pod] if is_bad(self.of_pod) else [])}

    def missing(self, is_good: Callable[[Any], bool]) -> list[str]:
        """Containers that set nothing, where the Pod sets nothing good for them."""
        if is_good(self.of_pod):
            return []
        return [name for name, value in self.of_containers if value is None]


def _setters(pod: PodView, *path: str) -> _Setters:
    return _Setters(
        _at(pod.spec, "securityContext", *path),
        tuple((each["name"], _at(each, "securityContext", *path)) for each in pod.containers),
    )


def _names(pod: PodView, is_bad: Callable[[JSON], bool]) -> list[str]:
    """Containers whose own securityContext is bad."""
    return [each["name"] for each in pod.containers if is_bad(each.get("securityContext") or {})]


# --- baseline ---

_PROFILES = ("RuntimeDefault", "Localhost")
_APP_ARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP_POD_ANNOTATION = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP_ANNOTATION = "container.seccomp.security.alpha.kubernetes.io/"
_DEFAULT_CAPABILITIES = frozenset(
    {
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    }
)
_HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC")
_HANDLERS = (
    ("livenessProbe",),
    ("readinessProbe",),
    ("startupProbe",),
    ("lifecycle", "postStart"),
    ("lifecycle", "preStop"),
)
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t")
_SYSCTLS = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
)
_SYSCTLS_27 = (*_SYSCTLS, "net.ipv4.ip_local_reserved_ports")
_SYSCTLS_29 = (
    *_SYSCTLS_27,
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
)
_SYSCTLS_32 = (*_SYSCTLS_29, "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem")
_SYSCTLS_37 = (*_SYSCTLS_32, "net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_notsent_lowat")


def _bad_profile(value: Any) -> bool:
    return value is not None and value not in _PROFILES


def _app_armor(pod: PodView) -> Violation | None:
    setters, values = _setters(pod, "appArmorProfile", "type").bad(_bad_profile)
    listed = sorted(values)
    annotations = sorted(
        f"{key}={json.dumps(value, ensure_ascii=False)}"
        for key, value in pod.annotations.items()
        if key.startswith(_APP_ARMOR_ANNOTATION)
        and value not in ("", "runtime/default")
        and not value.startswith("localhost/")
    )
    if annotations:
        listed += annotations
        setters.append(_plural("annotation", len(annotations)))
    if not setters:
        return None
    detail = f"{' and '.join(setters)} must not set AppArmor profile type to {_quoted(listed)}"
    return Violation(_plural("forbidden AppArmor profile", len(listed)), detail)


def _added(context: JSON, allowed: Iterable[str]) -> set[str]:
    return set(_at(context, "capabilities", "add") or ()) - set(allowed)


def _added_capabilities(pod: PodView, allowed: Iterable[str]) -> str:
    """What containers add beyond what they may; nothing where all is well."""
    names = _names(pod, lambda context: bool(_added(context, allowed)))
    added = {each for one in pod.containers for each in _added(one.get("securityContext") or {}, allowed)}
    if not names:
        return ""
    must_not = f"must not include {_quoted(sorted(added))} in securityContext.capabilities.add"
    return f"{_containers(names)} {must_not}"


def _capabilities(pod: PodView) -> Violation | None:
    detail = _added_capabilities(pod, _DEFAULT_CAPABILITIES)
    return Violation("non-default capabilities", detail) if detail else None


def _host_namespaces(pod: PodView) -> Violation | None:
    shared = [f"{field}=true" for field in _HOST_FIELDS if pod.spec.get(field)]
    return Violation("host namespaces", ", ".join(shared)) if shared else None


def _host_paths(pod: PodView) -> Violation | None:
    names = [volume["name"] for volume in pod.spec.get("volumes") or () if volume.get("hostPath") is not None]
    if not names:
        return None
    return Violation("hostPath volumes", f"{_plural('volume', len(names))} {_quoted(names)}")


def _host_ports(pod: PodView) -> Violation | None:
    ports = {
        each["name"]: {str(port["hostPort"]) for port in each.get("ports") or () if port.get("hostPort")}
        for each in pod.containers
    }
    names = [name for name, used in ports.items() if used]
    if not names:
        return None
    return Violation(
        "hostPort", _uses("container", names, "hostPort", set().union(*ports.values()), quote=False)
    )


def _hosts_of(container: JSON) -> set[str]:
    hosts = (
        _at(container, *handler, action, "host")
        for handler in _HANDLERS
        for action in ("httpGet", "tcpSocket")
    )
    return {host for host in hosts if host}


def _handler_hosts(pod: PodView) -> Violation | None:
    hosts = {each["name"]: _hosts_of(each) for each in pod.containers}
    names = sorted(name for name, used in hosts.items() if used)
    if not names:
        return None
    what = "probe or lifecycle host"
    return Violation(what, _uses("container", names, what, set().union(*hosts.values())))


def _privileged(pod: PodView) -> Violation | None:
    names = _names(pod, lambda context: bool(context.get("privileged")))
    detail = f"{_containers(names)} must not set securityContext.privileged=true"
    return Violation("privileged", detail) if names else None


def _proc_mount(pod: PodView) -> Violation | None:
    def is_bad(context: JSON) -> bool:
        return context.get("procMount") not in (None, "Default")

    names = _names(pod, is_bad)
    if not names:
        return None
    contexts = [each.get("securityContext") or {} for each in pod.containers]
    values = _quoted(sorted({context["procMount"] for context in contexts if is_bad(context)}))
    return Violation("procMount", f"{_containers(names)} must not set securityContext.procMount to {values}")


def _selinux(pod: PodView, types: tuple[str, ...]) -> Violation | None:
    options = _setters(pod, "seLinuxOptions")

    def is_bad(value: JSON | None) -> bool:
        if value is None:
            return False
        return value.get("type", "") not in types or bool(value.get("user") or value.get("role"))

    given = [value for value in (options.of_pod, *(each for _, each in options.of_containers)) if value]
    names = [name for name, value in options.of_containers if is_bad(value)]
    setters = (["pod"] if is_bad(options.of_pod) else []) + ([_containers(names)] if names else [])
    if not setters:
        return None
    bad_types = sorted({value.get("type", "") for value in given} - set(types))
    data = [f"{_plural('type', len(bad_types))} {_quoted(bad_types)}"] if bad_types else []
    data += [
        f"{field} may not be set" for field in ("user", "role") if any(each.get(field) for each in given)
    ]
    detail = f"{' and '.join(setters)} set forbidden securityContext.seLinuxOptions: {'; '.join(data)}"
    return Violation("seLinuxOptions", detail)


def _seccomp_annotations(pod: PodView) -> Violation | None:
    keys = {_SECCOMP_POD_ANNOTATION, *(_SECCOMP_ANNOTATION + each["name"] for each in pod.containers)}
    bad = sorted(
        f"{key}={json.dumps(pod.annotations[key], ensure_ascii=False)}"
        for key in keys & pod.annotations.keys()
        if pod.annotations[key] not in ("runtime/default", "docker/default")
        and not pod.annotations[key].startswith("localhost/")
    )
    if not bad:
        return None
    return Violation("seccompProfile", f"forbidden {_plural('annotation', len(bad))} {', '.join(bad)}")


def _seccomp(pod: PodView) -> Violation | None:
    setters, values = _setters(pod, "seccompProfile", "type").bad(_bad_profile)
    if not setters:
        return None
    listed = _quoted(sorted(values))
    detail = f"{' and '.join(setters)} must not set securityContext.seccompProfile.type to {listed}"
    return Violation("seccompProfile", detail)


def _sysctls(pod: PodView, allowed: tuple[str, ...]) -> Violation | None:
    sysctls = _at(pod.spec, "securityContext", "sysctls") or ()
    bad = [each["name"] for each in sysctls if each["name"] not in allowed]
    return Violation("forbidden sysctls", ", ".join(bad)) if bad else None


def _host_process(pod: PodView) -> Violation | None:
    setters, _ = _setters(pod, "windowsOptions", "hostProcess").bad(bool)
    detail = f"{' and '.join(setters)} must not set securityContext.windowsOptions.hostProcess=true"
    return Violation("hostProcess", detail) if setters else None


# --- restricted ---

_VOLUMES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
_FORBIDDEN_VOLUMES = (
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
)


def _escalation(pod: PodView) -> Violation | None:
    names = _names(pod, lambda context: context.get("allowPrivilegeEscalation") is not False)
    detail = f"{_containers(names)} must set securityContext.allowPrivilegeEscalation=false"
    return Violation("allowPrivilegeEscalation != false", detail) if names else None


def _no_capabilities(pod: PodView) -> Violation | None:
    keeping = _names(pod, lambda context: "ALL" not in (_at(context, "capabilities", "drop") or ()))
    must_drop = f'{_containers(keeping)} must set securityContext.capabilities.drop=["ALL"]'
    details = [must_drop] if keeping else []
    if added := _added_capabilities(pod, {"NET_BIND_SERVICE"}):
        details.append(added)
    return Violation("unrestricted capabilities", "; ".join(details)) if details else None


def _volumes(pod: PodView) -> Violation | None:
    bad = [volume for volume in pod.spec.get("volumes") or () if not _VOLUMES & _set_fields(volume)]
    if not bad:
        return None
    types = [next((one for one in _FORBIDDEN_VOLUMES if one in _set_fields(each)), "unknown") for each in bad]
    names = [volume["name"] for volume in bad]
    return Violation("restricted volume types", _uses("volume", names, "restricted volume type", types))


def _set_fields(volume: JSON) -> set[str]:
    return {field for field, value in volume.items() if value is not None}


def _non_root(pod: PodView) -> Violation | None:
    reason = "runAsNonRoot != true"
    fields = _setters(pod, "runAsNonRoot")
    setters, _ = fields.bad(lambda value: value is False)
    if setters:
        return Violation(reason, f"{' and '.join(setters)} must not set securityContext.runAsNonRoot=false")
    names = fields.missing(bool)
    detail = f"pod or {_containers(names)} must set securityContext.runAsNonRoot=true"
    return Violation(reason, detail) if names else None


def _user(pod: PodView) -> Violation | None:
    setters, _ = _setters(pod, "runAsUser").bad(lambda value: value == 0)
    return Violation("runAsUser=0", f"{' and '.join(setters)} must not set runAsUser=0") if setters else None


def _some_seccomp(pod: PodView) -> Violation | None:
    if explicit := _seccomp(pod):
        return explicit
    names = _setters(pod, "seccompProfile", "type").missing(lambda value: value in _PROFILES)
    must = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return Violation("seccompProfile", f"pod or {_containers(names)} {must}") if names else None


# --- the table ---

Run = Callable[[PodView], Violation | None]


@dataclass(frozen=True)
class Check:
    """One control of a level."""

    name: str
    level: Level
    forms: tuple[tuple[int, Run], ...]
    """The minor version from which a form holds, ascending."""
    instead_of: str = ""
    """The check of baseline that this one of restricted replaces."""

    def form(self, minor: int) -> Run | None:
        fitting = [run for since, run in self.forms if since <= minor]
        return fitting[-1] if fitting else None


def _unless(exempt: Callable[[PodView], bool], run: Run) -> Run:
    return lambda pod: None if exempt(pod) else run(pod)


def _not_windows(run: Run) -> Run:
    return _unless(lambda pod: pod.is_windows, run)


def _not_in_user_namespace(run: Run) -> Run:
    return _unless(lambda pod: pod.has_user_namespace, run)


_B, _R = Level.BASELINE, Level.RESTRICTED
CHECKS = (
    Check("appArmorProfile", _B, ((0, _app_armor),)),
    Check("capabilities_baseline", _B, ((0, _capabilities),)),
    Check("hostNamespaces", _B, ((0, _host_namespaces),)),
    Check("hostPathVolumes", _B, ((0, _host_paths),)),
    Check("hostPorts", _B, ((0, _host_ports),)),
    Check("hostProbesAndHostLifecycle", _B, ((34, _handler_hosts),)),
    Check("privileged", _B, ((0, _privileged),)),
    Check("procMount", _B, ((0, _proc_mount), (35, _not_in_user_namespace(_proc_mount)))),
    Check(
        "seLinuxOptions",
        _B,
        (
            (0, partial(_selinux, types=_SELINUX_TYPES)),
            (31, partial(_selinux, types=(*_SELINUX_TYPES, "container_engine_t"))),
        ),
    ),
    Check("seccompProfile_baseline", _B, ((0, _seccomp_annotations), (19, _seccomp))),
    Check(
        "sysctls",
        _B,
        (
            (0, partial(_sysctls, allowed=_SYSCTLS)),
            (27, partial(_sysctls, allowed=_SYSCTLS_27)),
            (29, partial(_sysctls, allowed=_SYSCTLS_29)),
            (32, partial(_sysctls, allowed=_SYSCTLS_32)),
            (37, partial(_sysctls, allowed=_SYSCTLS_37)),
        ),
    ),
    Check("windowsHostProcess", _B, ((0, _host_process),)),
    Check("allowPrivilegeEscalation", _R, ((8, _escalation), (25, _not_windows(_escalation)))),
    Check(
        "capabilities_restricted",
        _R,
        ((22, _no_capabilities), (25, _not_windows(_no_capabilities))),
        instead_of="capabilities_baseline",
    ),
    Check("procMount_restricted", _R, ((35, _proc_mount),), instead_of="procMount"),
    Check("restrictedVolumes", _R, ((0, _volumes),), instead_of="hostPathVolumes"),
    Check("runAsNonRoot", _R, ((0, _non_root), (35, _not_in_user_namespace(_non_root)))),
    Check("runAsUser", _R, ((23, _user), (35, _not_in_user_namespace(_user)))),
    Check(
        "seccompProfile_restricted",
        _R,
        ((19, _some_seccomp), (25, _not_windows(_some_seccomp))),
        instead_of="seccompProfile_baseline",
    ),
)
"""In the order in which Kubernetes reports them."""


@cache
def _checks(level: Level, minor: int) -> tuple[Run, ...]:
    return tuple(_active(level, minor))


def _active(level: Level, minor: int) -> Iterator[Run]:
    held = [check for check in CHECKS if check.level.strictness <= level.strictness and check.form(minor)]
    replaced = {check.instead_of for check in held}
    for check in held:
        form = check.form(minor)
        if form is not None and check.name not in replaced:
            yield form
