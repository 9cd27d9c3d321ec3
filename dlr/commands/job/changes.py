"""`dlr job scale`, `suspend`, `resume` and `delete`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated

import typer

from controller.wording import counted
from dlr.commands.errors import CommandError, Interrupted
from dlr.commands.options import JobName, complete_job_name, object_names, with_cluster
from dlr.job.deletion import wait_until_gone
from dlr.job.groups import refuse_group
from dlr.job.lookup import NoSuchJob, get_job, set_replicas, set_suspended
from dlr.kube.api import ELASTICJOBS, JSON, Api


@with_cluster
def scale(
    api: Api, name: JobName, replicas: Annotated[int, typer.Option(min=0, help="The number of workers.")]
) -> None:
    """Change the number of a job's workers."""
    refuse_group(get_job(api, name), "scale")
    before = set_replicas(api, name, replicas)
    after = counted(replicas, "worker")
    done = f"wants {after} already" if before == replicas else f"scaled from {before} to {after}"
    print(f"elasticjob {api.namespace}/{name} {done}")


@with_cluster
def suspend(api: Api, name: JobName) -> None:
    """Stop a job's training after time to save; its state stays."""
    _set_suspend(api, name, True, "suspended: its Pods are being deleted", "suspended already")


@with_cluster
def resume(api: Api, name: JobName) -> None:
    """Let a suspended job train again."""
    _set_suspend(api, name, False, "resumed: its Pods are being made", "not suspended")


def _set_suspend(api: Api, name: str, value: bool, done: str, already: str) -> None:
    changed = set_suspended(api, name, value)
    print(f"elasticjob {api.namespace}/{name} {done if changed else f'is {already}'}")


@with_cluster
def delete(
    api: Api,
    job_names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            callback=object_names,
            help="The jobs' names.",
            autocompletion=complete_job_name,
        ),
    ],
    wait: Annotated[bool, typer.Option(help="Wait until the jobs and their Pods are gone.")] = True,
    timeout_seconds: Annotated[
        float, typer.Option("--timeout", min=0, help="How many seconds to wait.")
    ] = 120.0,
) -> None:
    """Delete ElasticJobs with everything they made."""
    job_names = list(dict.fromkeys(job_names))
    found, missing = _found(api, job_names)
    for job in found.values():
        refuse_group(job, "delete")
    for name in found:
        api.delete(ELASTICJOBS, name)
        if not wait:
            print(f"elasticjob {api.namespace}/{name} is being deleted")
    if wait:
        _wait_until_all_are_gone(api, found, time.monotonic() + timeout_seconds)
    if missing:
        raise CommandError(" ".join(missing))


def _found(api: Api, job_names: Iterable[str]) -> tuple[dict[str, JSON], list[str]]:
    """Return the existing jobs, and a sentence for each of the others."""
    found, missing = {}, []
    for name in job_names:
        try:
            found[name] = get_job(api, name)
        except NoSuchJob as error:
            missing.append(str(error))
    return found, missing


def _wait_until_all_are_gone(api: Api, found: dict[str, JSON], deadline: float) -> None:
    for place, name in enumerate(found):
        try:
            wait_until_gone(api, found[name], deadline)
        except TimeoutError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            left = ", ".join(f"{api.namespace}/{each}" for each in [*found][place:])
            raise Interrupted(f"The cluster goes on deleting {left} without you.") from None
        print(f"elasticjob {api.namespace}/{name} deleted", flush=True)
