"""Creates the objects of a `dlr map`, all or none, and finds those of an existing one."""

from __future__ import annotations

import secrets
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlr.client import client
from dlr.commands.errors import CommandError
from dlr.commands.map.manifest import MapWorkers, config_map_names, objects, task_and_lines
from dlr.job.lookup import get_job
from dlr.kube.api import CONFIGMAPS, JSON, Api
from dlr.tasks.lines import Lines, LinesError, read
from dlr.tasks.task import LineTask


@dataclass(frozen=True)
class Submitted:
    """A `dlr map` in the cluster."""

    job: JSON
    task: LineTask
    sent: Lines | None
    """Lines, if they are in its ConfigMaps."""

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    def lines(self) -> Lines | None:
        """Return the lines; None if only its workers can read them."""
        if self.sent is None:
            with suppress(LinesError):
                return read(Path(self.task.lines_path))
        return self.sent


def new_name() -> str:
    return f"map-{secrets.token_hex(3)}"


def submit(api: Api, name: str, task: LineTask, lines: Lines | None, workers: MapWorkers) -> Submitted:
    """Create the job and its ConfigMaps.

    Args:
        lines: lines for the ConfigMaps; None if workers read them from `task.lines_path`.
    """
    try:
        made = objects(name, task, lines, workers)
    except LinesError as error:
        raise CommandError(f"{error}.") from error
    job, warnings = client.submit(api, made)
    for warning in warnings:
        print(f"dlr: warning: {warning}", file=sys.stderr)
    return Submitted(job, task, lines)


def attach(api: Api, name: str) -> Submitted:
    """Return the existing `dlr map` of that name."""
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
