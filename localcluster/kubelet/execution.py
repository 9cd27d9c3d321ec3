"""A command inside a running container, and the two other things that hooks and probes do."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass

import aiohttp
import orjson

from localcluster.kubelet.container import ContainerProcess, ContainerSpec, Isolation, shim_command
from localcluster.resource import JSON

OUTPUT_MAX_BYTES = 10 * 1024


@dataclass(frozen=True)
class Outcome:
    """Whether an action went well, and what it said."""

    ok: bool
    output: str


@dataclass(frozen=True)
class Inside:
    """A running container, for actions upon it."""

    process: ContainerProcess
    spec: ContainerSpec
    isolation: Isolation
    address: str
    ports: dict[str, int]


def named_ports(container: JSON) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container.get("ports") or () if port.get("name")}


async def act(action: JSON, inside: Inside, timeout_seconds: float) -> Outcome:
    """exec, httpGet or tcpSocket, of a probe or a hook. Another kind fails, and says so."""
    try:
        async with asyncio.timeout(timeout_seconds):
            if "exec" in action:
                return await _exec(action["exec"].get("command") or [], inside)
            if "httpGet" in action:
                return await _http_get(action["httpGet"], inside)
            if "tcpSocket" in action:
                return await _tcp_connect(action["tcpSocket"], inside)
            if "sleep" in action:
                await asyncio.sleep(action["sleep"]["seconds"])
                return Outcome(True, "")
    except TimeoutError:
        return Outcome(False, f"timed out after {timeout_seconds:g}s")
    except (OSError, aiohttp.ClientError) as error:
        return Outcome(False, str(error))
    return Outcome(False, "this kind of action is not supported by the embedded cluster")


async def _exec(command: list[str], inside: Inside) -> Outcome:
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *shim_command("localcluster.kubelet.enter", inside.spec.title),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    )
    try:
        helper = await asyncio.shield(starting)  # a start that is cancelled may wait for ever (gh-103847)
    except asyncio.CancelledError:
        starting.add_done_callback(_end_late)
        raise
    group = inside.process.memory_group
    task = {
        "pid": inside.process.main_pid,
        "isolation": inside.isolation.value,
        "argv": command,
        "env": inside.spec.env,
        "cwd": inside.spec.cwd,
        "memoryGroup": group.described() if group else None,
    }
    try:
        output, _ = await helper.communicate(orjson.dumps(task) + b"\n")
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            helper.terminate()  # it reaps the command
        raise
    text = output[:OUTPUT_MAX_BYTES].decode(errors="replace")
    return Outcome(helper.returncode == 0, text or f"exit code {helper.returncode}")


def _end_late(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    """End a helper that started after its caller was cancelled."""
    if not starting.cancelled() and starting.exception() is None:
        with suppress(ProcessLookupError):
            starting.result().terminate()


def _port(reference: int | str, inside: Inside) -> int:
    if isinstance(reference, int) or reference.isdigit():
        return int(reference)
    if reference not in inside.ports:
        raise OSError(f'the container has no port named "{reference}"')
    return inside.ports[reference]


async def _http_get(action: JSON, inside: Inside) -> Outcome:
    scheme = (action.get("scheme") or "HTTP").lower()
    host = action.get("host") or inside.address
    path = "/" + (action.get("path") or "/").lstrip("/")
    headers = {header["name"]: header["value"] for header in action.get("httpHeaders") or ()}
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    url = f"{scheme}://{host}:{_port(action['port'], inside)}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=unverified) as response,
    ):
        body = (await response.content.read(OUTPUT_MAX_BYTES)).decode(errors="replace")
        ok = 200 <= response.status < 400
        return Outcome(ok, body if ok else f"HTTP probe failed with statuscode: {response.status}")


async def _tcp_connect(action: JSON, inside: Inside) -> Outcome:
    host = action.get("host") or inside.address
    _, writer = await asyncio.open_connection(host, _port(action["port"], inside))
    writer.close()
    return Outcome(True, "")
