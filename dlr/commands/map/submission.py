"""Makes a `dlr map` in a cluster, whole or not at all, and finds one that is there."""

from __future__ import annotations

import secrets
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dlr.commands.creation import create
from dlr.commands.errors import CommandError
from dlr.commands.map.manifest import (
    MapWorkers,
    chunks_of,
    config_map_names,
    config_maps,
    job_of,
    task_and_lines,
)
from dlr.job.lookup import get_job
from dlr.kube.api import CONFIGMAPS, ELASTICJOBS, JSON, Api
from dlr.kube.errors import ApiError
from dlr.tasks.lines import Lines, LinesError, read
from dlr.tasks.task import LineTask


@dataclass(frozen=True)
class Submitted:
    """A `dlr map` in the cluster."""

    job: JSON
    task: LineTask
    sent: Lines | None
    """The lines, if they were sent along."""

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    def lines(self) -> Lines | None:
        """None where only its workers can see them."""
        if self.sent is None:
            with suppress(LinesError):
                return read(Path(self.task.lines_path))
        return self.sent


def new_name() -> str:
    return f"map-{secrets.token_hex(3)}"


def submit(api: Api, name: str, task: LineTask, lines: Lines | None, workers: MapWorkers) -> Submitted:
    """Make the job and its ConfigMaps, and let it begin.

    Args:
        lines: to be sent along; None where workers read them from `task.lines_path`.
    """
    try:
        chunks = chunks_of(task, lines)
    except LinesError as error:
        raise CommandError(f"{error}.") from error
    with ExitStack() as undo:
        body = job_of(name, task, workers, len(chunks))
        job = create(api, ELASTICJOBS, body, partial(_refusal, api, name))
        undo.callback(_take_back, api, name)
        for config_map in config_maps(name, job["metadata"]["uid"], chunks):
            api.create(CONFIGMAPS, config_map)
        job = api.patch(ELASTICJOBS, name, patch={"spec": {"suspend": False}})
        undo.pop_all()
    return Submitted(job, task, lines)


def _refusal(api: Api, name: str, failure: ApiError) -> str:
    if failure.reason != "AlreadyExists":
        return str(failure)
    return (
        f"There is an ElasticJob {name!r} in namespace {api.namespace!r} already; attach to it with "
        f"`dlr map --attach {name} -n {api.namespace}`, or choose another --name."
    )


def _take_back(api: Api, name: str) -> None:
    with suppress(ApiError):
        api.delete(ELASTICJOBS, name)


def attach(api: Api, name: str) -> Submitted:
    """The `dlr map` of that name."""
    job = get_job(api, name)
    made = config_map_names(job)
    if not made:
        raise CommandError(
            f"The job {name!r} was not made by `dlr map`; "
            f"`dlr job status {name} -n {api.namespace}` shows how it is."
        )
    try:
        task, lines = task_and_lines([api.get(CONFIGMAPS, each) for each in made])
    except (KeyError, TypeError, ValueError) as error:
        raise CommandError(f"The ConfigMaps of the job {name!r} cannot be read: {error}.") from error
    return Submitted(job, task, lines)
