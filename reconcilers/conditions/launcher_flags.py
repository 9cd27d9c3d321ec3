"""DLRover's flags in the workers' command that the Pods do not obey: warning `LauncherFlagsIgnored`.

They are read from the job's template, before any Pod runs: DLRover's launcher asks its master for what they
set, and here fields of the ElasticJob set it. Flags whose fields are set likewise are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pydantic.alias_generators import to_snake

from crds import names
from crds.dlrover import LAUNCHER, Ignored, ignored, options
from crds.elasticjob import ElasticJob
from crds.job_status import JobWarning
from reconcilers.look import DesiredJob, WarningState
from reconcilers.observed.command import Remembered, command_words, launches_in
from reconcilers.observed.minimum import expanded_words, known_variables

LAUNCHER_FLAGS_IGNORED = "LauncherFlagsIgnored"


def judge(_: JobWarning | None, look: DesiredJob) -> WarningState | None:
    found = ignored_flags(look.job)
    return WarningState(f"not obeyed by {LAUNCHER}: {'; '.join(found)}") if found else None


def ignored_flags(job: ElasticJob) -> list[str]:
    """What to do about each flag that the launcher ignores and the job does not say itself."""
    worker = job.spec.replica_specs.get(names.WORKER)
    if worker is None:
        return []
    container = worker.template["spec"]["containers"][0]
    variables = known_variables(worker, job.spec.envs, container)
    return [
        flag.advice
        for flag in _ignored(command_words(container), variables)
        if worker.replicas >= flag.flag.workers and not _says_itself(job, flag)
    ]


@Remembered
def _ignored(words: Sequence[str], variables: Mapping[str, str]) -> Sequence[Ignored]:
    """What the first of DLRover's launchers in a command ignores."""
    arguments = next((each.arguments for each in launches_in(words) if each.name == LAUNCHER), ())
    return ignored(options(expanded_words(arguments, variables)))


def _says_itself(job: ElasticJob, flag: Ignored) -> bool:
    """Whether the job's field is what the flag asks for."""
    if not flag.flag.field:
        return False
    path = map(to_snake, flag.flag.field.split("."))
    return str(reduce(getattr, path, job.spec)).lower() == flag.setting
