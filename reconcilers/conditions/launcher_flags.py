"""DLRover's flags in the workers' command that the Pods do not obey: condition `LauncherFlagsIgnored`.

They are read out of the job's own template, before any Pod runs: DLRover's launcher asks its master for what
they say, and here the ElasticJob says it. What the job's own fields say is left out.
"""

from __future__ import annotations

import functools

from pydantic.alias_generators import to_snake

from crds import names
from crds.dlrover import LAUNCHER, Ignored, ignored, options
from crds.elasticjob import ElasticJob
from crds.model import Condition, ConditionStatus
from reconcilers.conditions.facts import Facts
from reconcilers.observed.command import launches
from reconcilers.observed.conditions import NextState, State
from reconcilers.observed.minimum import expanded, known_variables

LAUNCHER_FLAGS_IGNORED = "LauncherFlagsIgnored"


def judge(_: Condition | None, facts: Facts) -> NextState:
    found = ignored_flags(facts.job)
    message = f"not obeyed by {LAUNCHER}: {'; '.join(found)}"
    return State(ConditionStatus.TRUE, "DLRoverFlags", message) if found else None


def ignored_flags(job: ElasticJob) -> list[str]:
    """What to do about each flag that the launcher ignores and the job does not say itself."""
    worker = job.spec.replica_specs.get(names.WORKER)
    if worker is None:
        return []
    container = worker.template["spec"]["containers"][0]
    variables = known_variables(worker, job.spec.envs, container)
    arguments = next((each.arguments for each in launches(container) if each.name == LAUNCHER), ())
    words = [expanded(word, variables) for word in arguments]
    return [
        flag.advice
        for flag in ignored(options(words))
        if worker.replicas >= flag.flag.workers and not _says_itself(job, flag)
    ]


def _says_itself(job: ElasticJob, flag: Ignored) -> bool:
    """Whether the job's field is what the flag asks for."""
    if not flag.flag.field:
        return False
    path = map(to_snake, flag.flag.field.split("."))
    return str(functools.reduce(getattr, path, job.spec)).lower() == flag.setting
