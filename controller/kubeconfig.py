"""Choice of the cluster: the kubeconfig is found, read and resolved.

OpenSSL reads certificates only from files, so inline ones are written to a private folder. A login plugin
runs once, and again for `Connection.renew`. The result is files and a token. `kubernetes.config` does all
this too, but takes half a second to import, and its errors are not sentences.
"""

from __future__ import annotations

import base64
import binascii
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from controller.connection import Connection, in_cluster, service_account_folder
from controller.errors import ConfigError

JSON = dict[str, Any]

FILE_KEYS = {
    "cluster": ("certificate-authority",),
    "user": ("client-certificate", "client-key"),
}
TEXT_KEYS = {
    "cluster": ("server", "certificate-authority", "tls-server-name", "proxy-url"),
    "user": ("client-certificate", "client-key", "token", "tokenFile", "username", "password"),
    "context": ("cluster", "user", "namespace"),
}
"""Fields that are text even if YAML reads a number: `namespace: 7`."""
LOGIN_KEYS = ("exec", "auth-provider")


class UnknownContext(ConfigError):
    """The requested context is in none of the kubeconfigs."""


@dataclass(frozen=True)
class KubeconfigSource:
    """Source of the configuration."""

    label: str
    """Name of the source in messages: `--kubeconfig`, `$KUBECONFIG`, …"""
    paths: tuple[Path, ...]
    """Kubeconfigs in order of precedence; empty for the service account of the current Pod."""

    def __str__(self) -> str:
        names = ", ".join(map(str, self.paths))
        return f"{self.label} ({names})" if names else self.label


def find_source(
    explicit: str | None, environment: Mapping[str, str], user_file: Path | None = None
) -> KubeconfigSource | None:
    """Return `--kubeconfig`, `$KUBECONFIG`, the Pod's service account, or `~/.kube/config`."""
    if explicit:
        return _existing("--kubeconfig", [explicit])
    if paths := [each for each in environment.get("KUBECONFIG", "").split(os.pathsep) if each]:
        return _existing("$KUBECONFIG", paths)
    if (
        environment.get("KUBERNETES_SERVICE_HOST")
        and (service_account_folder(environment) / "token").is_file()
    ):
        return KubeconfigSource(in_cluster(environment).source, ())
    user_file = user_file or default_kubeconfig()
    return KubeconfigSource("the default kubeconfig", (user_file,)) if user_file.is_file() else None


def default_kubeconfig() -> Path:
    return Path(os.path.expanduser("~")) / ".kube" / "config"  # noqa: PTH111 - cannot fail


def load_connection(
    source: KubeconfigSource | Path | str | None = None,
    context: str | None = None,
    environment: Mapping[str, str] = os.environ,
    advice: str = ".",
) -> Connection:
    """Return the connection that a source, or a kubeconfig, defines.

    Args:
        source: None for the first one found.
        context: context of the kubeconfig; None for its current one.
        advice: as in `Connection`.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    if not isinstance(source, KubeconfigSource):
        source = find_source(str(source) if source else None, environment)
    if source is None:
        raise ConfigError(f"No cluster is configured: there is no kubeconfig at {default_kubeconfig()}.")
    if source.paths:
        found = Connection(**_resolve(source, _merge([_read(path) for path in source.paths]), context))
    else:
        found = in_cluster(environment)
    proxy = found.proxy or _proxy_of_environment(found.server)
    renew = partial(load_connection, source, context, environment, advice) if source.paths else None
    return replace(found, advice=advice, proxy=proxy, renew=renew)


def contexts_of(source: KubeconfigSource) -> list[str]:
    """Return the names of the contexts, sorted."""
    return sorted(map(str, _merge([_read(path) for path in source.paths])["contexts"]))


def _existing(label: str, names: list[str]) -> KubeconfigSource:
    try:
        paths = tuple(Path(name).expanduser() for name in names)
    except RuntimeError as error:
        raise ConfigError(f"{label} names the home of an unknown user: {', '.join(names)}.") from error
    there = tuple(path for path in paths if path.exists())
    if not there:
        raise ConfigError(f"{label} names {', '.join(map(str, paths))}, which does not exist.")
    return KubeconfigSource(label, there)


def _read(path: Path) -> JSON:
    """Read one kubeconfig, with relative file names made absolute."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"The kubeconfig {path} cannot be read: {reason}.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: `2026-13-45` is no date
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        why = _one_line(getattr(error, "problem", error))
        raise ConfigError(f"The kubeconfig {where} is not YAML: {why}.") from error
    if not isinstance(content, dict) or not all(
        _is_entry(each, part) for part in TEXT_KEYS for each in _entries(content, part)
    ):
        raise ConfigError(
            f"The kubeconfig {path} is not a kubeconfig: it must have lists of clusters and contexts."
        )
    for part, texts in TEXT_KEYS.items():
        for entry in _entries(content, part):
            body = entry.get(part) or {}
            body |= {key: str(body[key]) for key in texts if body.get(key) is not None}
            for key in (*FILE_KEYS.get(part, ()), "tokenFile"):
                if body.get(key):
                    body[key] = str(path.parent.absolute() / Path(body[key]).expanduser())
            plugin = body.get("exec") or {}
            if os.sep in str(plugin.get("command")):
                plugin["command"] = str(path.parent.absolute() / plugin["command"])
    return content


def _is_entry(entry: Any, part: str) -> bool:
    body = (entry.get(part) or {}) if isinstance(entry, dict) else None
    return isinstance(body, dict) and all(isinstance(body.get(key) or {}, dict) for key in LOGIN_KEYS)


def _one_line(error: object) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _entries(content: JSON, part: str) -> list[Any]:
    """Return the entries for clusters, users or contexts; a value that is not a list is its own, invalid
    entry."""
    found = content.get(f"{part}s") or []
    return found if isinstance(found, list) else [found]


def _merge(documents: list[JSON]) -> JSON:
    """Merge documents as kubectl does: the first to set a field wins."""
    merged: JSON = {"clusters": {}, "users": {}, "contexts": {}, "current-context": ""}
    for document in documents:
        merged["current-context"] = merged["current-context"] or str(document.get("current-context") or "")
        for part in ("cluster", "user", "context"):
            for entry in _entries(document, part):
                merged[f"{part}s"].setdefault(str(entry.get("name")), entry.get(part) or {})
    return merged


def _resolve(source: KubeconfigSource, merged: JSON, context_name: str | None) -> JSON:
    """Return the arguments of the Connection."""
    chosen = context_name or merged["current-context"]
    known = ", ".join(sorted(map(str, merged["contexts"]))) or "none"
    if not chosen:
        raise ConfigError(f"{source} has no current-context; choose one with --context (it has: {known}).")
    context = merged["contexts"].get(chosen)
    if context is None:
        wrong = UnknownContext if context_name else ConfigError
        raise wrong(f"{source} has no context {chosen!r} (it has: {known}).")
    cluster = merged["clusters"].get(context.get("cluster"))
    if not cluster or not cluster.get("server"):
        raise ConfigError(
            f"Context {chosen!r} of {source} names cluster {context.get('cluster')!r}, which has no server."
        )
    user = merged["users"].get(context.get("user")) if context.get("user") else {}
    if user is None:
        raise ConfigError(
            f"Context {chosen!r} of {source} names user {context['user']!r}, which does not exist."
        )
    folder = tempfile.TemporaryDirectory(prefix="dlr-")
    user = _with_files(_logged_in(user, cluster, source), FILE_KEYS["user"], Path(folder.name), source)
    cluster = _with_files(cluster, FILE_KEYS["cluster"], Path(folder.name), source)
    certificate, name = user.get("client-certificate"), user.get("username")
    return {
        "server": str(cluster["server"]),
        "source": str(source),
        "namespace": context.get("namespace") or "default",
        "ca_file": cluster.get("certificate-authority"),
        "trusts_any_certificate": cluster.get("insecure-skip-tls-verify") is True,
        "server_name": cluster.get("tls-server-name"),
        "client_certificate": (certificate, user.get("client-key")) if certificate else None,
        "token": user.get("token"),
        "token_file": Path(user["tokenFile"]) if user.get("tokenFile") else None,
        "password": f"{name}:{user.get('password', '')}" if name else None,
        "proxy": cluster.get("proxy-url"),
        "private_files": folder,
    }


def _proxy_of_environment(server: str) -> str | None:
    """Return the proxy from the environment; None for a cluster on this machine."""
    address = urlsplit(server)
    host = address.hostname or ""
    is_named = any(name.lower().endswith("_proxy") for name in os.environ)
    if host in ("localhost", "::1") or host.startswith("127.") or not is_named:
        return None
    from urllib.request import getproxies, proxy_bypass

    proxy = None if proxy_bypass(host) else getproxies().get(address.scheme)
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"  # as curl and kubectl read it


def _with_files(entry: JSON, keys: tuple[str, ...], folder: Path, source: KubeconfigSource) -> JSON:
    """Return the entry with inline data moved to files that only this user can read."""
    resolved = dict(entry)
    for key in keys:
        data = resolved.pop(f"{key}-data", None)
        if data:
            try:
                (folder / key).write_bytes(base64.b64decode("".join(str(data).split()), validate=True))
            except binascii.Error as error:
                raise ConfigError(f"{key}-data in {source} is not base64.") from error
            resolved[key] = str(folder / key)
        elif key in resolved and not Path(resolved[key]).is_file():
            raise ConfigError(f"{source} names the {key} {resolved[key]}, which does not exist.")
    return resolved


def _logged_in(user: JSON, cluster: JSON, source: KubeconfigSource) -> JSON:
    """Return the user with the credentials from its login plugin or OpenID Connect provider."""
    resolved = dict(user)
    plugin, provider = resolved.pop("exec", None), resolved.pop("auth-provider", None)
    if not plugin and not provider:
        return resolved
    # Imported here, so that only clusters with such a login pay for it.
    from kubernetes.config.exec_provider import ExecProvider
    from kubernetes.config.kube_config import ConfigNode, KubeConfigLoader

    login = f"login plugin {plugin.get('command')!r}" if plugin else f"login {provider.get('name')!r}"
    try:
        if plugin:
            node, it = ConfigNode("exec", plugin), ConfigNode("cluster", cluster)  # type: ignore[no-untyped-call]
            status = ExecProvider(node, None, it).run()  # type: ignore[no-untyped-call]
        else:
            loader = KubeConfigLoader(_alone(provider))  # type: ignore[no-untyped-call]
            loader._load_authentication()  # type: ignore[no-untyped-call]
            status = {"token": loader.token.removeprefix("Bearer ")}
        if status.get("token"):
            return resolved | {"token": str(status["token"])}
        inline = {"client-certificate": "clientCertificateData", "client-key": "clientKeyData"}
        return resolved | {
            f"{key}-data": base64.b64encode(status[data].encode()).decode()
            for key, data in inline.items()
            if data in status
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"The {login} of {source} gave no credentials: its settings or its answer are not understood."
        ) from error
    except Exception as error:  # the library raises anything
        raise ConfigError(f"The {login} of {source} gave no credentials: {_one_line(error)}.") from error


def _alone(provider: JSON) -> JSON:
    """Return a kubeconfig with only this login."""
    return {
        "clusters": [{"name": "it", "cluster": {}}],
        "users": [{"name": "it", "user": {"auth-provider": provider}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "current-context": "it",
    }
