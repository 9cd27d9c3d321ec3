"""Which cluster a command talks to: the kubeconfig that is found, read and resolved.

OpenSSL takes certificates from files alone, so those that stand inline in a kubeconfig go to a private
folder. An `exec` plugin is asked once. What is left is files and a token.
"""

from __future__ import annotations

import base64
import binascii
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from agent.kube.connection import Connection as Connection
from agent.kube.connection import in_cluster, service_account_folder
from dlr.kube.errors import ApiError, UsageError
from dlr.kube.waiting import waiting_for
from localcluster.paths import Home

JSON = dict[str, Any]

FILE_KEYS = {
    "cluster": ("certificate-authority",),
    "user": ("client-certificate", "client-key"),
}
ADVICE = "; is the cluster up? (`dlr up` starts a local one.)"


@dataclass(frozen=True)
class Source:
    """The source of the configuration."""

    said_by: str
    """The source's name for messages: `--kubeconfig`, `$KUBECONFIG`, …"""
    paths: tuple[Path, ...]
    """Kubeconfigs, the first taking precedence; none for the service account of the Pod we are in."""

    def __str__(self) -> str:
        names = ", ".join(map(str, self.paths))
        return f"{self.said_by} ({names})" if names else self.said_by


def find_source(
    explicit: str | None,
    environment: Mapping[str, str] = os.environ,
    user_file: Path | None = None,
    embedded_file: Path | None = None,
) -> Source:
    """`--kubeconfig`, `$KUBECONFIG`, the Pod's service account, `~/.kube/config`, the embedded cluster's."""
    if explicit:
        return _existing("--kubeconfig", [explicit])
    if environment.get("KUBECONFIG"):
        return _existing("$KUBECONFIG", environment["KUBECONFIG"].split(os.pathsep))
    if (
        environment.get("KUBERNETES_SERVICE_HOST")
        and (service_account_folder(environment) / "token").is_file()
    ):
        return Source(in_cluster(environment).source, ())
    user_file = user_file or Path(os.path.expanduser("~")) / ".kube" / "config"  # noqa: PTH111 - cannot fail
    if user_file.is_file():
        return Source("the default kubeconfig", (user_file,))
    embedded_file = embedded_file or Home.default().kubeconfig
    if embedded_file.is_file():
        return Source("the embedded cluster's kubeconfig", (embedded_file,))
    raise ApiError(
        "No cluster is configured: start a local one with `dlr up`, or name a kubeconfig with --kubeconfig "
        f"or $KUBECONFIG (neither {user_file} nor {embedded_file} exists)."
    )


def connect(
    explicit: str | None,
    context: str | None,
    namespace: str | None,
    environment: Mapping[str, str] = os.environ,
) -> Connection:
    """Return the connection to the cluster that the user means.

    Args:
        explicit: the kubeconfig that an option names.
        context: the kubeconfig's context; None for its current one.
        namespace: in place of the context's.

    Raises:
        ApiError: there is no cluster, or what names it cannot be used.
    """
    source = find_source(explicit, environment)
    if source.paths:
        found = _resolve(source, _merge([_read(path) for path in source.paths]), context)
    else:
        found = in_cluster(environment)
    return replace(
        found,
        namespace=namespace or found.namespace,
        advice=ADVICE,
        proxy=found.proxy or _proxy_of_environment(found.server),
    )


def contexts_of(source: Source) -> list[str]:
    """The names of the contexts in it, in order."""
    return sorted(map(str, _merge([_read(path) for path in source.paths])["contexts"]))


def _existing(said_by: str, names: list[str]) -> Source:
    try:
        paths = tuple(Path(name).expanduser() for name in names if name)
    except RuntimeError as error:
        raise ApiError(
            f"{said_by} names the home of a user that is not known: {', '.join(names)}."
        ) from error
    there = tuple(path for path in paths if path.exists())
    if not there:
        raise ApiError(f"{said_by} names {', '.join(map(str, paths))}, which does not exist.")
    return Source(said_by, there)


def _read(path: Path) -> JSON:
    """One kubeconfig, with relative file names made absolute."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ApiError(f"The kubeconfig {path} cannot be read: {reason}.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ApiError(f"The kubeconfig {where} is not YAML: {getattr(error, 'problem', error)}.") from error
    if not isinstance(content, dict) or not all(
        isinstance(content.get(key) or [], list) for key in ("clusters", "users", "contexts")
    ):
        raise ApiError(
            f"The kubeconfig {path} is not a kubeconfig: it must have lists of clusters and contexts."
        )
    for part, keys in FILE_KEYS.items():
        for entry in content.get(f"{part}s") or []:
            for key in (*keys, "tokenFile"):
                body = entry.get(part) or {}
                if body.get(key):
                    body[key] = str(path.parent.absolute() / Path(body[key]).expanduser())
    return content


def _merge(documents: list[JSON]) -> JSON:
    """Merge documents as kubectl does: the first to set a field wins."""
    merged: JSON = {"clusters": {}, "users": {}, "contexts": {}, "current-context": ""}
    for document in documents:
        merged["current-context"] = merged["current-context"] or document.get("current-context") or ""
        for part in ("cluster", "user", "context"):
            for entry in document.get(f"{part}s") or []:
                merged[f"{part}s"].setdefault(entry.get("name"), entry.get(part) or {})
    return merged


def _resolve(source: Source, merged: JSON, context_name: str | None) -> Connection:
    chosen = context_name or merged["current-context"]
    known = ", ".join(sorted(map(str, merged["contexts"]))) or "none"
    if not chosen:
        raise ApiError(f"{source} has no current-context; choose one with --context (it has: {known}).")
    context = merged["contexts"].get(chosen)
    if context is None:
        wrong = UsageError if context_name else ApiError
        raise wrong(f"{source} has no context {chosen!r} (it has: {known}).")
    cluster = merged["clusters"].get(context.get("cluster"))
    if not cluster or not cluster.get("server"):
        raise ApiError(
            f"Context {chosen!r} of {source} names cluster {context.get('cluster')!r}, which has no server."
        )
    user = merged["users"].get(context.get("user"), {})
    if "auth-provider" in user:
        raise ApiError(
            f"{source} uses a login that dlr does not support: auth-provider, which Kubernetes has removed; "
            "an exec plugin does the same."
        )
    folder = tempfile.TemporaryDirectory(prefix="dlr-")
    cluster = _with_files(cluster, FILE_KEYS["cluster"], Path(folder.name), source)
    user = _with_files(_with_plugin(user, source), FILE_KEYS["user"], Path(folder.name), source)
    certificate, name = user.get("client-certificate"), user.get("username")
    return Connection(
        server=str(cluster["server"]),
        source=str(source),
        namespace=context.get("namespace") or "default",
        ca_file=cluster.get("certificate-authority"),
        trusts_any_certificate=bool(cluster.get("insecure-skip-tls-verify")),
        server_name=cluster.get("tls-server-name"),
        client_certificate=(certificate, user.get("client-key")) if certificate else None,
        token=user.get("token"),
        token_file=Path(user["tokenFile"]) if user.get("tokenFile") else None,
        password=f"{name}:{user.get('password', '')}" if name else None,
        proxy=cluster.get("proxy-url"),
        private_files=folder,
    )


def _proxy_of_environment(server: str) -> str | None:
    """Return the proxy that the environment names; none for a cluster on this machine."""
    address = urlsplit(server)
    host = address.hostname or ""
    is_named = any(name.lower().endswith("_proxy") for name in os.environ)
    if host in ("localhost", "::1") or host.startswith("127.") or not is_named:
        return None
    from urllib.request import getproxies, proxy_bypass

    return None if proxy_bypass(host) else getproxies().get(address.scheme)


def _with_files(entry: JSON, keys: tuple[str, ...], folder: Path, source: Source) -> JSON:
    """Inline data, moved to files that only we can read."""
    resolved = dict(entry)
    for key in keys:
        data = resolved.pop(f"{key}-data", None)
        if data:
            try:
                (folder / key).write_bytes(base64.b64decode(data))
            except binascii.Error as error:
                raise ApiError(f"{key}-data in {source} is not base64.") from error
            resolved[key] = str(folder / key)
        elif key in resolved and not Path(resolved[key]).is_file():
            raise ApiError(f"{source} names the {key} {resolved[key]}, which does not exist.")
    return resolved


def _with_plugin(user: JSON, source: Source) -> JSON:
    """The user with what its login plugin answers."""
    resolved = dict(user)
    plugin = resolved.pop("exec", None)
    return resolved | _ask_plugin(plugin, source) if plugin else resolved


def _ask_plugin(plugin: JSON, source: Source) -> JSON:
    # Imported here: only clusters with a login plugin pay for it.
    from kubernetes.config.config_exception import ConfigException
    from kubernetes.config.exec_provider import ExecProvider
    from kubernetes.config.kube_config import ConfigNode

    try:
        node = ConfigNode("exec", plugin)  # type: ignore[no-untyped-call]
        with waiting_for(f"the login plugin {plugin.get('command')}"):
            status = ExecProvider(node, cwd=None).run()  # type: ignore[no-untyped-call]
    except (ConfigException, OSError) as error:
        raise ApiError(
            f"The login plugin {plugin.get('command')!r} of {source} gave no credentials: {error}"
        ) from error
    if status.get("token"):
        return {"token": status["token"]}
    inline = {"client-certificate": "clientCertificateData", "client-key": "clientKeyData"}
    return {
        f"{key}-data": base64.b64encode(status[data].encode()).decode()
        for key, data in inline.items()
        if data in status
    }
