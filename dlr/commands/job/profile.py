"""`dlr job profile`: what one rank does for a few seconds, as a file for Perfetto.

As with stacks, an annotation of the job is the request. An agent writes the profile into its container's log,
and reports that in its worker's status.
"""

from __future__ import annotations

import secrets
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from crds import names
from crds.agent_report import MAX_PROFILE_SECONDS
from crds.log_parts import from_log
from dlr.commands.errors import CommandError
from dlr.commands.options import Context, Group, JobName, Kubeconfig, Namespace
from dlr.job.groups import refuse_grouped
from dlr.job.logs import default_container
from dlr.job.lookup import get_group, get_unfinished_job, list_workers
from dlr.job.report import current_report
from dlr.job.wording import printable_line, utc_now
from dlr.kube.api import ELASTICJOBS, JSON, PODS, Api
from dlr.kube.connection import connect
from dlr.kube.errors import ApiError, UsageError
from dlr.kube.following import until_finished

ANSWER_SECONDS = 90.0
"""Beyond the seconds that are recorded: for the trace to be written, and shorter ones if it is too large."""
TIMES_TRIED = 3
LOG_SECONDS = 300
"""Age of the log lines that are read, by the node's clock: an answer is newer."""
LOG_WAIT_SECONDS = 60.0
"""Time for the lines to reach the log."""
VIEWER = "https://ui.perfetto.dev"


class By(StrEnum):
    TORCH = "torch.profiler"
    PY_SPY = "py-spy"


def profile(
    name: JobName,
    rank: Annotated[int, typer.Option(min=0, metavar="R", help="Which process, by its global rank.")] = 0,
    group: Group = None,
    seconds: Annotated[
        float, typer.Option(min=0.05, max=MAX_PROFILE_SECONDS, metavar="SECONDS", help="Record so long.")
    ] = 5,
    by: Annotated[
        By | None,
        typer.Option(help="What records; by default torch.profiler, and py-spy where that is not offered."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="Write it there, instead of NAME-rankR.json.gz."),
    ] = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Record what one process does, for ui.perfetto.dev."""
    if file is not None and (file.is_dir() or not file.parent.is_dir()):  # before anything is recorded
        why = "it is a folder" if file.is_dir() else f"there is no folder {file.parent}"
        raise UsageError(f"The profile cannot be written to {file}: {why}.")
    api = Api(connect(kubeconfig, context, namespace))
    job = get_unfinished_job(api, name, "none of its processes runs any more")
    if group is not None:
        job = get_group(api, job, group)
        name = job["metadata"]["name"]
    refuse_grouped(job, "job profile", f"--rank {rank}")
    world = (job.get("status") or {}).get("rendezvous") or {}
    if world.get("phase") != "Formed" or rank >= world.get("worldSize", 0):
        formed = world.get("phase") == "Formed"
        why = f"its world has {world.get('worldSize')} of them" if formed else "it has no world just now"
        raise CommandError(f"No process of {name!r} has rank {rank}: {why}.")
    target = file or Path(f"{name}-rank{rank}.json.gz")
    answer = _ask(api, name, rank, seconds, by.value if by else "")
    if answer is None:
        raise CommandError(
            f"No agent of {name!r} has answered: rank {rank} does not run just now, or its agent is older "
            "than this dlr, or cannot reach the API server."
        )
    if not answer.get("size"):
        why = answer.get("note") or "its agent gives no reason"
        raise CommandError(f"There is no profile of rank {rank}: {why}.")
    data = _read(api, answer["pod"], answer["request"])
    try:
        target.write_bytes(data)
    except OSError as error:
        raise CommandError(f"The profile cannot be written to {target}: {error.strerror}.") from error
    note = f" ({answer['note']})" if answer.get("note") else ""
    line = f"{answer['seconds']:g} s of rank {rank}, by {answer['by']}{note}: {target}; open it in {VIEWER}"
    print(printable_line(line))


def _ask(api: Api, name: str, rank: int, seconds: float, by: str) -> JSON | None:
    request = f"{utc_now():%Y-%m-%dT%H:%M:%SZ}-{secrets.token_hex(4)}/{rank}/{seconds:g}/{by}"
    api.patch(ELASTICJOBS, name, patch={"metadata": {"annotations": {names.ANNOTATION_PROFILE: request}}})

    def answer() -> JSON | None:
        for worker in list_workers(api, name):
            found = current_report(worker).get("profile") or {}
            if found.get("request") == request:
                return {**found, "pod": worker["status"].get("podName")}
        return None

    within_seconds = ANSWER_SECONDS + TIMES_TRIED * seconds
    *_, last = until_finished(answer, lambda found: found is not None, within_seconds=within_seconds)
    return last


def _read(api: Api, pod: str, request: str) -> bytes:
    """Read the profile from the log of its Pod, where the agent has written it before it answered.

    Raises:
        CommandError: it is not there, in a sentence.
    """

    def look() -> bytes | None:
        parameters: dict[str, str | int] = {"container": container, "sinceSeconds": LOG_SECONDS}
        with api.log(pod, parameters, follow=False) as lines:
            return from_log(request, lines)

    try:
        container = default_container(api.get(PODS, pod))
        *_, data = until_finished(look, lambda found: found is not None, within_seconds=LOG_WAIT_SECONDS)
    except ApiError as failure:
        if failure.reason != "NotFound":
            raise
        raise CommandError(f"The Pod {pod} is gone, and the profile in its log with it.") from failure
    if data is None:
        raise CommandError(
            f"The log of the Pod {pod} does not have the whole profile: it was rotated meanwhile, or the "
            "command sends the agent's stderr elsewhere. Ask again, for a shorter time."
        )
    return data
