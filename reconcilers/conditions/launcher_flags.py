"""DLRover's flags in the workers' command that the Pods do not obey: warning `LauncherFlagsIgnored`.

They are read from the job's template, before any Pod runs: DLRover's launcher asks its master for what they
set, and here fields of the ElasticJob set it. Flags whose fields are set likewise are left out.
"""

from __future__ import annotations

import functools
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.alias_generators import to_snake

from crds import names
from crds.dlrover import LAUNCHER, Ignored, ignored, options
from crds.elasticjob import ElasticJob
from crds.job_status import JobWarning
from reconcilers.conditions.facts import Facts, Trouble
from reconcilers.observed.minimum import (
    COMMENT,
    command_words,
    expanded,
    known_variables,
)

LAUNCHER_FLAGS_IGNORED = "LauncherFlagsIgnored"

_LAUNCHER_IN_TEXT = re.compile(rf"(?:^|(?<=[\s;&|(/'\"])){LAUNCHER}(?=\s)")
_KUBERNETES_REFERENCE = re.compile(r"\$\((\w+)\)")
_SUBSTITUTION = re.compile(r"\$\(\([^()]*\)\)|\$\([^()]*\)|`[^`]*`")
"""`$((…))`, `$(…)` and the old form of the latter: one word each, which nobody here can know."""
_OPERATORS = ";&|()<>"


def judge(_: JobWarning | None, facts: Facts) -> Trouble | None:
    found = ignored_flags(facts.job)
    return Trouble(f"not obeyed by {LAUNCHER}: {'; '.join(found)}") if found else None


def ignored_flags(job: ElasticJob) -> list[str]:
    """What to do about each flag that the launcher ignores and the job does not say itself."""
    worker = job.spec.replica_specs.get(names.WORKER)
    if worker is None:
        return []
    container = worker.template["spec"]["containers"][0]
    variables = known_variables(worker, job.spec.envs, container)
    words = [expanded(word, variables) for word in launcher_arguments(container)]
    return [
        flag.advice
        for flag in ignored(options(words))
        if worker.replicas >= flag.flag.workers and not _says_itself(job, flag)
    ]


def launcher_arguments(container: Mapping[str, Any]) -> list[str]:
    """What stands behind `dlrover-run` in a container's command, whether that is words or a shell's text."""
    words = list(command_words(container))
    for number, word in enumerate(words):
        if posixpath.basename(word) == LAUNCHER:
            return words[number + 1 :]
        text = COMMENT.sub("", word.replace("\\\n", " "))
        found = _LAUNCHER_IN_TEXT.search(text)
        if found is not None:
            return list(_shell_words(text[found.end() :]))
    return []


def _shell_words(text: str) -> Iterator[str]:
    """The words of a shell's text up to the end of its first command; variables stay as they are."""
    text = _SUBSTITUTION.sub("$?", _KUBERNETES_REFERENCE.sub(r"${\1}", text))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        for word in lexer:
            if word[:1] in _OPERATORS:
                return
            yield word
    except ValueError:  # a quote without its end: what came before it counts
        return


def _says_itself(job: ElasticJob, flag: Ignored) -> bool:
    """Whether the job's field is what the flag asks for."""
    if not flag.flag.field:
        return False
    path = map(to_snake, flag.flag.field.split("."))
    return str(functools.reduce(getattr, path, job.spec)).lower() == flag.setting
