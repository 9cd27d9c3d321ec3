"""pods/log: which file a request means, and following it while its container runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.errors import bad_request
from localcluster.apiserver.log_files import LogOptions, LogReader
from localcluster.apiserver.requests import Context
from localcluster.apiserver.writes import current_object
from localcluster.client.clock import parse_timestamp
from localcluster.resource import JSON

FOLLOW_INTERVAL_SECONDS = 0.1
"""How often a followed log is looked at: the standard library cannot wait for a file to grow."""

Write = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True)
class Run:
    """One run of a container."""

    pod_uid: str
    container: str
    restart_count: int


def read_options(context: Context, now: datetime) -> LogOptions:
    """Return the part of the log that a request asks for."""
    since = None
    if (seconds := context.integer("sinceSeconds")) is not None:
        since = now - timedelta(seconds=seconds)
    elif text := context.query.get("sinceTime"):
        try:
            since = parse_timestamp(text)
        except ValueError:
            raise bad_request(f'sinceTime: "{text}" is not an RFC 3339 time') from None
    return LogOptions(
        tail_lines=context.integer("tailLines"),
        since=since,
        timestamps=context.flag("timestamps"),
        limit_bytes=context.integer("limitBytes"),
    )


def choose_run(pod: JSON, container: str, *, previous: bool) -> Run | None:
    """The run whose log is wanted, None while the Pod has no node; raises the error that kubectl shows."""
    name = container or _only_container(pod)
    status = _container_status(pod, name)
    metadata = pod["metadata"]
    known = [
        each["name"] for part in ("initContainers", "containers") for each in pod["spec"].get(part) or ()
    ]
    if name not in known:
        raise bad_request(f"container {name} is not valid for pod {metadata['name']}")
    if not pod["spec"].get("nodeName"):
        return None
    restart_count = int((status or {}).get("restartCount", 0))
    if previous:
        if restart_count == 0:
            raise bad_request(f'previous terminated container "{name}" in pod "{metadata["name"]}" not found')
        return Run(metadata["uid"], name, restart_count - 1)
    return Run(metadata["uid"], name, restart_count)


def _only_container(pod: JSON) -> str:
    containers = [container["name"] for container in pod["spec"]["containers"]]
    if len(containers) == 1:
        return str(containers[0])
    message = (
        f"a container name must be specified for pod {pod['metadata']['name']}, "
        f"choose one of: [{' '.join(containers)}]"
    )
    init = [container["name"] for container in pod["spec"].get("initContainers") or ()]
    if init:
        message += f" or one of the init containers: [{' '.join(init)}]"
    raise bad_request(message)


def _container_status(pod: JSON, name: str) -> JSON | None:
    status = pod.get("status") or {}
    for part in ("containerStatuses", "initContainerStatuses"):
        for each in status.get(part) or ():
            if each.get("name") == name:
                found: JSON = each
                return found
    return None


def is_over(pod: JSON | None, run: Run) -> bool:
    """Whether a run will write no more: it ended, another follows it, or its Pod is gone."""
    if pod is None or pod["metadata"]["uid"] != run.pod_uid:
        return True
    status = _container_status(pod, run.container)
    if status is None:
        return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    if status.get("restartCount", 0) > run.restart_count:
        return True
    return "terminated" in (status.get("state") or {})


def read_log_request(cluster: Cluster, context: Context, now: datetime) -> LogRequest | None:
    """Read a request for a log; None where there is no log yet, because the Pod has no node."""
    options = read_options(context, now)
    pod = current_object(cluster, context).obj
    run = choose_run(pod, context.query.get("container", ""), previous=context.flag("previous"))
    return None if run is None else LogRequest(cluster, context, pod, run, options)


class LogRequest:
    """One request for a log."""

    def __init__(self, cluster: Cluster, context: Context, pod: JSON, run: Run, options: LogOptions) -> None:
        self._cluster = cluster
        self._context = context
        self._options = options
        self._follow = context.flag("follow")
        self._run = run
        self._path = cluster.home.container_log(run.pod_uid, run.container, run.restart_count)
        if not self._path.exists():
            self._explain_absence(pod)

    def _explain_absence(self, pod: JSON) -> None:
        status = _container_status(pod, self._run.container) or {}
        waiting = (status.get("state") or {}).get("waiting")
        if waiting is not None or not status:
            reason = (waiting or {}).get("reason") or "ContainerCreating"
            name = pod["metadata"]["name"]
            raise bad_request(
                f'container "{self._run.container}" in pod "{name}" is waiting to start: {reason}'
            )

    async def run(self, write: Write) -> None:
        """Send the log, and if asked, what is added to it."""
        reader = await self._open()
        if reader is None:
            return
        try:
            while not reader.exhausted:
                # Asked before reading: what was written before the end is then surely read.
                over = not self._follow or is_over(self._pod(), self._run)
                if shown := await asyncio.to_thread(reader.read):
                    await write(shown)
                elif over:
                    return
                else:
                    await asyncio.sleep(FOLLOW_INTERVAL_SECONDS)
        finally:
            reader.close()

    async def _open(self) -> LogReader | None:
        while not self._path.exists():
            if not self._follow or is_over(self._pod(), self._run):
                return None
            await asyncio.sleep(FOLLOW_INTERVAL_SECONDS)
        return await asyncio.to_thread(LogReader.open, self._path, self._options)

    def _pod(self) -> JSON | None:
        stored = self._cluster.get(self._context.type, self._context.namespace, self._context.name)
        return stored.obj if stored is not None else None
