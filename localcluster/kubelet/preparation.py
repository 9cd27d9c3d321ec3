"""Preparation of a Pod for its first container: folder, address, volumes, token."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from controller.connection import Connection
from controller.errors import ApiError
from controller.resources import SERVICEACCOUNTS
from localcluster.client.clock import parse_timestamp, utc_now
from localcluster.kubelet.container_life import PodWorld
from localcluster.kubelet.environment import Surroundings
from localcluster.kubelet.host import api_environment, host_environment, temporary_environment
from localcluster.kubelet.services import NodeServices
from localcluster.kubelet.sources import fetch, references
from localcluster.kubelet.volumes import (
    HOSTS_FILE,
    SERVICE_ACCOUNT_PATH,
    File,
    TokenRequest,
    Tokens,
    hostname,
    hosts_file,
    prepare_volume,
    service_account_volume,
    service_name,
    token_requests,
    volume_files,
    wants_service_account,
    write_files,
)
from localcluster.resource import JSON

TOKEN_RENEWED_AT = 0.8
"""The part of a token's life after which it is replaced, as in Kubernetes."""
TOKEN_RETRY_SECONDS = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IssuedToken:
    request: TokenRequest
    token: bytes
    expires_at: datetime


class Preparation:
    """Makes a Pod's world, anew before each run of a container, and keeps its tokens fresh."""

    def __init__(self, services: NodeServices, pod: JSON, address: str) -> None:
        self._services = services
        self._pod = pod
        self._address = address
        self._issued: dict[tuple[str, str], IssuedToken] = {}
        self.folder = services.home.pods / pod["metadata"]["uid"]

    async def world(self) -> PodWorld:
        """ApiError, ConfigError or MountError say what is missing."""
        pod, services = self._pod, self._services
        namespace = pod["metadata"]["namespace"]
        spec = pod["spec"]
        volumes: list[JSON] = list(spec.get("volumes") or ())
        extra_files: list[File] = []
        account_volume = None
        if await self._wants_account():
            authority = _authority(services.client.connection)
            account_volume, extra_files = service_account_volume(authority)
            volumes.append(account_volume)
        sources, tokens = await asyncio.gather(
            fetch(services.client, namespace, references(pod)), self._tokens(token_requests(volumes))
        )
        environment = api_environment(services.client.connection.server)
        around = Surroundings(pod, self._address, sources, services.allocatable(), environment)
        paths = {}
        for volume in volumes:
            files = volume_files(volume, around, tokens)
            if volume is account_volume and files is not None:
                files += extra_files
            paths[volume["name"]] = prepare_volume(volume, self.folder / "volumes" / volume["name"], files)
        own = hosts_file(pod, _host_entries())
        path = self.folder / "hosts"
        services.hosts_files.introduce(self._address, hostname(pod), path, own, service_name(pod))
        mounted = pod if account_volume is None else _with_account_mounts(pod, account_volume["name"])
        base = host_environment() | temporary_environment(services.home.pod_temporary(pod["metadata"]["uid"]))
        return PodWorld(services, mounted, self.folder, base, paths, around)

    async def keep_tokens_fresh(self) -> None:
        """Until cancelled, with the Pod."""
        while True:
            due = [_renewal_seconds(issued) for issued in self._issued.values()]
            await asyncio.sleep(max(min(due, default=TOKEN_RETRY_SECONDS), TOKEN_RETRY_SECONDS))
            for key, issued in list(self._issued.items()):
                if _renewal_seconds(issued) > 0:
                    continue
                try:
                    fresh = await self._issue(issued.request)
                except ApiError as failure:
                    log.warning("token not renewed pod=%s error=%s", self._pod["metadata"]["name"], failure)
                    continue
                self._issued[key] = fresh
                folder = self.folder / "volumes" / issued.request.volume
                write_files(folder, [File(issued.request.path, fresh.token)])

    async def _wants_account(self) -> bool:
        spec = self._pod["spec"]
        containers = (spec.get("initContainers") or []) + spec["containers"]
        if not any(wants_service_account(container) for container in containers):
            return False
        automount = spec.get("automountServiceAccountToken")
        if automount is None:
            path = SERVICEACCOUNTS.path(self._pod["metadata"]["namespace"], self._account)
            automount = (await self._services.client.get(path)).get("automountServiceAccountToken")
        return automount is not False

    @property
    def _account(self) -> str:
        return self._pod["spec"].get("serviceAccountName") or "default"

    async def _tokens(self, requests: list[TokenRequest]) -> Tokens:
        for request in requests:
            key = (request.volume, request.path)
            if key not in self._issued or _renewal_seconds(self._issued[key]) <= 0:
                self._issued[key] = await self._issue(request)
        return {key: issued.token for key, issued in self._issued.items()}

    async def _issue(self, request: TokenRequest) -> IssuedToken:
        metadata = self._pod["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        spec: JSON = {"boundObjectRef": bound, "expirationSeconds": request.expiration_seconds}
        if request.audience:
            spec["audiences"] = [request.audience]
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = SERVICEACCOUNTS.path(metadata["namespace"], self._account, "token")
        status = (await self._services.client.create(path, wanted))["status"]
        return IssuedToken(request, status["token"].encode(), parse_timestamp(status["expirationTimestamp"]))


def _renewal_seconds(issued: IssuedToken) -> float:
    left = (issued.expires_at - utc_now()).total_seconds()
    return left - (1 - TOKEN_RENEWED_AT) * issued.request.expiration_seconds


def _with_account_mounts(pod: JSON, volume: str) -> JSON:
    """The Pod as the containers are to see it: with the token where they left its place free."""
    mount = {"name": volume, "mountPath": SERVICE_ACCOUNT_PATH, "readOnly": True}
    spec = dict(pod["spec"])
    for part in ("initContainers", "containers"):
        spec[part] = [
            {**container, "volumeMounts": [*(container.get("volumeMounts") or ()), mount]}
            if wants_service_account(container)
            else container
            for container in spec.get(part) or ()
        ]
    return {**pod, "spec": spec}


def _authority(connection: Connection) -> bytes:
    return Path(connection.ca_file or "").read_bytes()


def _host_entries() -> str:
    try:
        return Path(HOSTS_FILE).read_text()
    except OSError:
        return "127.0.0.1\tlocalhost\n"
