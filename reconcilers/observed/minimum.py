"""The minimum: the fewest workers with which a job goes on training.

It is `minReplicas`, if set. Otherwise, it is MIN of the launcher's `--nnodes=MIN:MAX` in the first
container's command, as DLRover's users write it, or of PET_NNODES in its environment, from which torchrun
takes the flag. Otherwise, it is `replicas`, or, with extra workers, the number of needed ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import re2

from crds import names
from crds.elasticjob import ElasticJob
from crds.job_spec import ReplicaSpec
from reconcilers.observed.command import MAX_TEXT, command_words, flags_in
from reconcilers.observed.slots import base_of

Variables = Mapping[str, str]

_REFERENCE = re2.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|\((\w+)\)|(\w+))")
"""`$NAME`, `${NAME}`, `${NAME:-default}` and `$(NAME)`. RE2: for `re`, many `${NAME:-` without an end take
quadratic time."""
_RANGE = re.compile(r"([0-9]{1,6}):([0-9]{1,6})")
MAX_EXPANDED = 1_024
"""Most characters of a word with the values of its variables."""
MOST_REMEMBERED = 512
"""Most cached commands, of up to `MAX_TEXT` characters each."""
_QUOTES = str.maketrans("", "", "\"'\\")


def minimum_workers(job: ElasticJob) -> int:
    """Return the minimum in whole node units, from 1 to `replicas`; 0 if the job has no workers."""
    worker = job.spec.replica_specs.get(names.WORKER)
    if worker is None:
        return 0
    unit = job.spec.elastic_policy.node_unit
    base = base_of(job)
    asked = stated_minimum(job) or (worker.replicas if base is None else min(base, worker.replicas))
    return min(-(-asked // unit) * unit, worker.replicas)


def stated_minimum(job: ElasticJob) -> int | None:
    """Return the minimum that the job itself or its command states; None if neither does."""
    worker = job.spec.replica_specs.get(names.WORKER)
    if worker is None:
        return None
    return worker.min_replicas or _of_launcher(worker, job.spec.envs)


def _of_launcher(worker: ReplicaSpec, envs: Mapping[str, Any]) -> int | None:
    """Return MIN, if the command or the environment has a readable range."""
    container = worker.template["spec"]["containers"][0]
    variables = plain_variables(worker, envs, container)
    flag = _nnodes(command_words(container))
    found = _RANGE.fullmatch(expanded(variables.get("PET_NNODES", "") if flag is None else flag, variables))
    if found is None:
        return None
    least, most = int(found[1]), int(found[2])
    return max(least, 1) if least <= most else None


@lru_cache(maxsize=MOST_REMEMBERED)
def _nnodes(words: Sequence[str]) -> str | None:
    """Return the value of `--nnodes` in a command; cached, as every reconcile of a job needs it."""
    return next((flag.value or "" for flag in flags_in(words) if flag.name == "nnodes"), None)


def plain_variables(worker: ReplicaSpec, envs: Mapping[str, Any], container: Mapping[str, Any]) -> Variables:
    """Return the container's variables with plain values: ours, overridden by the job's, then by its own."""
    replicas = str(worker.replicas)
    variables = {"NODE_NUM": replicas, "WORKER_NUM": replicas}
    own = ((entry["name"], entry) for entry in container.get("env") or ())
    for name, value in (*envs.items(), *own):
        plain = value.get("value") if isinstance(value, dict) else value
        if plain is None:
            variables.pop(name, None)  # its value comes from elsewhere (valueFrom)
        else:
            variables[name] = str(plain)
    return variables


def expanded(text: str, variables: Variables) -> str:
    """Return the text without quotes, and with the values of variables; unset ones stay as they are.

    The result is cut at `MAX_EXPANDED` characters, so that repeated long values cannot fill the memory.
    """
    text, parts, end, length = text.translate(_QUOTES)[:MAX_TEXT], list[str](), 0, 0
    for reference in _REFERENCE.finditer(text):
        name = reference[1] or reference[3] or reference[4]
        value = variables.get(name, reference[2] or reference[0])
        parts += [text[end : reference.start()], value[:MAX_EXPANDED]]
        end, length = reference.end(), length + len(parts[-2]) + len(parts[-1])
        if length > MAX_EXPANDED:
            break
    return "".join([*parts, text[end:]])[:MAX_EXPANDED]
