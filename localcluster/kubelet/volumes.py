"""A Pod's volumes: their files below the Pod's folder, and where each container sees them.

A volume's content is plain data first (`volume_files`, pure), then written; the shim mounts it.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from pathlib import Path

from localcluster.kubelet.environment import Surroundings, expand
from localcluster.kubelet.errors import ConfigError, MountError
from localcluster.kubelet.fields import field_value, resource_value
from localcluster.kubelet.sources import Source, SourceKind
from localcluster.resource import JSON

SERVICE_ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
SERVICE_ACCOUNT_VARIABLE = "DLR_SERVICEACCOUNT_DIR"
"""Names the token's folder where it cannot be mounted."""
FILE_MODE = 0o644
HOSTS_FILE = "/etc/hosts"
TERMINATION_LOG = "/dev/termination-log"
TERMINATION_LOG_VARIABLE = "DLR_TERMINATION_LOG"
"""Where the file is that cannot be mounted."""
SHARED_MEMORY = "/dev/shm"
"""Containers have the host's own: a folder on disk in its place would be slow."""


@dataclass(frozen=True)
class File:
    """One file of a volume, its path relative to the volume."""

    path: str
    content: bytes
    mode: int = FILE_MODE


@dataclass(frozen=True)
class TokenRequest:
    """A ServiceAccount token that a volume wants, and the file for it."""

    volume: str
    path: str
    audience: str | None
    expiration_seconds: int


Tokens = dict[tuple[str, str], bytes]
"""(volume, path) to token."""


def token_requests(volumes: list[JSON]) -> list[TokenRequest]:
    return [
        TokenRequest(
            volume["name"],
            projection["serviceAccountToken"]["path"],
            projection["serviceAccountToken"].get("audience"),
            projection["serviceAccountToken"].get("expirationSeconds", 3600),
        )
        for volume in volumes
        for projection in (volume.get("projected") or {}).get("sources") or ()
        if "serviceAccountToken" in projection
    ]


def service_account_volume(certificate: bytes) -> tuple[JSON, list[File]]:
    """The volume that every Pod gets at SERVICE_ACCOUNT_PATH, and the files that are not projections."""
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}
    namespace = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    projections = [token, {"downwardAPI": {"items": [namespace]}}]
    volume: JSON = {"name": "kube-api-access", "projected": {"sources": projections}}
    return volume, [File("ca.crt", certificate)]


def volume_files(volume: JSON, around: Surroundings, tokens: Tokens) -> list[File] | None:
    """The files of a volume made from the API; None for one that holds the Pod's own files."""
    if "projected" in volume:
        projected = volume["projected"]
        mode = projected.get("defaultMode", FILE_MODE)
        files: list[File] = []
        for projection in projected.get("sources") or ():
            files += _projection_files(volume["name"], projection, mode, around, tokens)
        return files
    if "configMap" in volume:
        reference = volume["configMap"]
        return _source_files(volume["name"], SourceKind.CONFIG_MAP, reference["name"], reference, around)
    if "secret" in volume:
        reference = volume["secret"]
        return _source_files(volume["name"], SourceKind.SECRET, reference["secretName"], reference, around)
    if "downwardAPI" in volume:
        reference = volume["downwardAPI"]
        return _downward_files(reference, reference.get("defaultMode", FILE_MODE), around)
    return None


def _projection_files(
    volume: str, projection: JSON, mode: int, around: Surroundings, tokens: Tokens
) -> list[File]:
    if "serviceAccountToken" in projection:
        path = projection["serviceAccountToken"]["path"]
        return [File(path, tokens[volume, path], mode)]
    if "downwardAPI" in projection:
        return _downward_files(projection["downwardAPI"], mode, around)
    for name, kind in (("configMap", SourceKind.CONFIG_MAP), ("secret", SourceKind.SECRET)):
        if name in projection:
            reference = {"defaultMode": mode} | projection[name]
            return _source_files(volume, kind, reference["name"], reference, around)
    raise MountError(
        volume, f"projection {next(iter(projection), '')} is not supported by the embedded cluster"
    )


def _source_files(
    volume: str, kind: SourceKind, name: str, reference: JSON, around: Surroundings
) -> list[File]:
    content = around.sources.get(Source(kind, name))
    if content is None:
        if reference.get("optional"):
            return []
        raise MountError(volume, f'{kind.value} "{name}" not found')
    mode = reference.get("defaultMode", FILE_MODE)
    items = reference.get("items")
    if items is None:
        return [File(key, value, mode) for key, value in content.items()]
    files = []
    for item in items:
        if item["key"] in content:
            files.append(File(_safe(volume, item["path"]), content[item["key"]], item.get("mode", mode)))
        elif not reference.get("optional"):
            raise MountError(volume, f"references non-existent {kind.value} key: {item['key']}")
    return files


def _downward_files(reference: JSON, mode: int, around: Surroundings) -> list[File]:
    files = []
    for item in reference.get("items") or ():
        if "fieldRef" in item:
            text = field_value(around.pod, item["fieldRef"]["fieldPath"], around.address)
        else:
            first = around.pod["spec"]["containers"][0]
            text = resource_value(around.pod, first, item["resourceFieldRef"], around.allocatable)
        files.append(File(_safe("downwardAPI", item["path"]), text.encode(), item.get("mode", mode)))
    return files


def _safe(volume: str, path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise MountError(volume, f"path {path} leads out of the volume")
    return path


def write_files(folder: Path, files: list[File]) -> None:
    """Each file appears whole, or the former one stays."""
    for file in files:
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.with_name(f".{target.name}.new")
        scratch.write_bytes(file.content)
        scratch.chmod(file.mode)
        scratch.replace(target)


def prepare_volume(volume: JSON, folder: Path, files: list[File] | None) -> Path:
    """Make a volume's files, and say where on the host they are."""
    name = volume["name"]
    if files is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_files(folder, files)
        return folder
    if "hostPath" in volume:
        return _host_path(name, volume["hostPath"])
    if "emptyDir" in volume or set(volume) == {"name"}:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        return folder
    kind = next(key for key in volume if key != "name")
    raise MountError(
        name, f"{kind} volumes are not supported by the embedded cluster; use emptyDir or hostPath"
    )


def _host_path(name: str, reference: JSON) -> Path:
    path, kind = Path(reference["path"]), reference.get("type") or ""
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate" and not path.exists():
        path.touch()
    if not path.exists():
        raise MountError(name, f"hostPath {path}: No such file or directory")
    if (kind == "Directory" and not path.is_dir()) or (kind == "File" and not path.is_file()):
        raise MountError(name, f"hostPath type check failed: {path} is not a {kind}")
    return path


def container_mounts(container: JSON, paths: dict[str, Path], variables: dict[str, str]) -> list[JSON]:
    """Return the mounts for the shim, parents first."""
    mounts = []
    for mount in container.get("volumeMounts") or ():
        target = posixpath.normpath(posixpath.join("/", mount["mountPath"]))
        if target == SHARED_MEMORY:
            continue
        source = paths[mount["name"]]
        below = mount.get("subPath") or expand(mount.get("subPathExpr") or "", variables)
        if below:
            if below.startswith("/") or ".." in below.split("/"):
                raise ConfigError(f"subPath {below} of volume {mount['name']} leads out of the volume")
            source = source / below
            if not source.exists():
                source.mkdir(parents=True)
        entry: JSON = {
            "source": str(source),
            "target": target,
            "readOnly": bool(mount.get("readOnly")),
        }
        if entry["target"] == SERVICE_ACCOUNT_PATH:
            entry["elseEnv"] = SERVICE_ACCOUNT_VARIABLE
        mounts.append(entry)
    return sorted(mounts, key=lambda entry: str(entry["target"]).count("/"))


def wants_service_account(container: JSON) -> bool:
    """Whether it leaves the place of the token free."""
    return all(mount["mountPath"] != SERVICE_ACCOUNT_PATH for mount in container.get("volumeMounts") or ())


def hosts_file(pod: JSON, host_entries: str) -> bytes:
    """/etc/hosts of a Pod: the host's, and its aliases. (`HostsFiles` adds the Pods' own names.)"""
    lines = [host_entries.rstrip("\n"), "::ffff:127.0.0.1\tlocalhost"]
    for alias in pod["spec"].get("hostAliases") or ():
        lines.append(f"{alias['ip']}\t{' '.join(alias.get('hostnames') or ())}")
    return ("\n".join(lines) + "\n").encode()


def service_name(pod: JSON) -> str:
    """The name that a headless Service called as its subdomain gives the Pod; empty if it has none."""
    spec = pod["spec"]
    if not (spec.get("hostname") and spec.get("subdomain")):
        return ""
    return f"{spec['hostname']}.{spec['subdomain']}.{pod['metadata']['namespace']}.svc"


def hostname(pod: JSON) -> str:
    """Return the Pod's host name, cut to the kernel's limit as in Kubernetes."""
    name = pod["spec"].get("hostname") or pod["metadata"]["name"]
    return str(name)[:63].rstrip("-.")
