"""The API server's address and our credentials: kubeconfig or in-cluster, by `kubernetes.aio`.

That library reads every kind of kubeconfig and refreshes credentials; what it raises when a file is
unreadable ranges from AttributeError to ssl.SSLError, so here all of it becomes one sentence.
"""

from __future__ import annotations

import os
import ssl
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from controller.errors import ConfigError

DEFAULT_KUBECONFIG = Path("~/.kube/config")
CREDENTIALS_REFRESH_SECONDS = 60.0
_IN_CLUSTER_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class Connection:
    """A way to one API server."""

    base_url: str
    ssl_context: ssl.SSLContext | None
    namespace: str
    """The namespace of the kubeconfig's context, or of our Pod; `default` when none is said."""
    configuration: Any
    """`kubernetes.aio`'s Configuration: keeps the credentials and refreshes them."""
    server_hostname: str | None = None
    proxy: str | None = None

    async def authorization(self) -> str | None:
        """The Authorization header's value, re-read when it is due."""
        try:
            value = await self.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        except Exception as error:
            raise ConfigError(f"cannot refresh the credentials for {self.base_url}: {error}") from error
        return str(value).strip() if value else None


async def load_connection(kubeconfig: Path | str | None = None, context: str | None = None) -> Connection:
    """Load `kubeconfig`, else $KUBECONFIG, else the Pod's service account, else ~/.kube/config."""
    if kubeconfig is not None:
        return await _from_kubeconfig(str(kubeconfig), context)
    if os.environ.get("KUBECONFIG"):
        return await _from_kubeconfig(os.environ["KUBECONFIG"], context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and context is None:
        return _in_cluster()
    return await _from_kubeconfig(str(DEFAULT_KUBECONFIG), context)


async def _from_kubeconfig(paths: str, context: str | None) -> Connection:
    existing = _existing(paths)
    if not existing:
        raise ConfigError(f"there is no kubeconfig at {paths}: start a cluster or set KUBECONFIG")
    configuration: Any = Configuration()
    try:
        loader = await kubernetes_config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=os.pathsep.join(existing),
            context=context,
            client_configuration=configuration,
            persist_config=False,
        )
        configuration.refresh_api_key_hook = _Refresh(loader)
        namespace = loader.current_context["context"].get("namespace") or "default"
        return _connection(configuration, str(namespace))
    except ConfigError:
        raise
    except Exception as error:  # the library lets anything through
        raise ConfigError(f"cannot read the kubeconfig {paths}: {_reason(error)}") from error


def _existing(paths: str) -> list[str]:
    """$KUBECONFIG may name several files; kubectl passes over the missing ones, so do we."""
    return [path for path in paths.split(os.pathsep) if path and Path(path).expanduser().exists()]


def _in_cluster() -> Connection:
    configuration: Any = Configuration()
    try:
        kubernetes_config.load_incluster_config(  # type: ignore[no-untyped-call]
            client_configuration=configuration
        )
        namespace = "default"
        if _IN_CLUSTER_NAMESPACE.exists():
            namespace = _IN_CLUSTER_NAMESPACE.read_text().strip()
        return _connection(configuration, namespace)
    except Exception as error:
        raise ConfigError(f"cannot use the Pod's service account: {error}") from error


def _connection(configuration: Any, namespace: str) -> Connection:
    base_url = str(configuration.host).rstrip("/")
    url = urllib.parse.urlsplit(base_url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(f"the kubeconfig's server {base_url!r} is not an http(s) URL")
    # Python 3.13 refuses certificates without an Authority Key Identifier, which some clusters' CAs issue.
    configuration.disable_strict_ssl_verification = True
    context = RESTClientObject(configuration).ssl_context if url.scheme == "https" else None
    return Connection(
        base_url=base_url,
        ssl_context=context,
        namespace=namespace,
        configuration=configuration,
        server_hostname=configuration.tls_server_name or None,
        proxy=configuration.proxy or _environment_proxy(url.scheme, url.hostname),
    )


def _environment_proxy(scheme: str, host: str) -> str | None:
    """HTTPS_PROXY and NO_PROXY, looked up once: aiohttp would do it again for every request."""
    if urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(scheme)


class _Refresh:
    """Reads credentials again that change behind a kubeconfig: token files, exec plugins, OIDC."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._due = time.monotonic() + CREDENTIALS_REFRESH_SECONDS

    def __call__(self, configuration: Any) -> Any:
        # The library awaits coroutines only; the common call must not pay for one.
        return self._reload(configuration) if time.monotonic() >= self._due else None

    async def _reload(self, configuration: Any) -> None:
        # Set first: other calls, of this event loop or another, go on with what there is meanwhile.
        self._due = time.monotonic() + CREDENTIALS_REFRESH_SECONDS
        try:
            await self._loader.load_and_set(configuration)
        except BaseException:
            self._due = 0.0
            raise


def _reason(error: Exception) -> str:
    if isinstance(error, TypeError | AttributeError | KeyError):
        return "it does not have the shape of a kubeconfig"
    return " ".join(str(error).split()) or type(error).__name__
