"""The objects of a `dlr map`: an ElasticJob, and ConfigMaps with its lines. Pure."""

from __future__ import annotations

import base64
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from crds import names
from crds.names import API_VERSION
from dlr.client.manifest import config_map
from dlr.kube.api import JSON
from dlr.tasks.lines import CHUNK_NAME, Lines, chunk_names, packed, unpacked
from dlr.tasks.task import FOLDER, TASK_FILE, LineTask
from dlr.tasks.worker import EXIT_NO_LINES, EXIT_NOT_FOUND

VOLUME = "dlr-map"
COMMAND = ("dlr", "exec", "-m", "dlr.tasks.worker")
GRACE_SECONDS = 10
RESTARTS = 1_000
"""restartCount of the workers: a lost Pod is no failure of lines, which have retries of their own."""
KEPT_SECONDS = 86_400
"""Time for which a finished job is kept, with the logs of its Pods."""
HEARTBEAT_TIMEOUT_SECONDS = 15
"""heartbeatTimeoutSeconds: agents report done lines in a third of it, so a lost worker repeats few lines."""
LAST_CALL_SECONDS = 5
"""lastCallSeconds: workers do not wait for a world, so a late worker causes few new ones."""


@dataclass(frozen=True)
class MapWorkers:
    """Workers that run the command."""

    least: int
    most: int
    slots: int
    idle_seconds: int
    image: str = ""
    requests: Mapping[str, str] = field(default_factory=dict)
    """Resource requests of one worker, for all its slots."""
    template: JSON = field(default_factory=dict)
    """The user's Pod template, whose first container runs the command."""

    def at_first(self, lines: int) -> int:
        """Return the number of workers at the start: enough for the lines; the least if their number is 0."""
        wanted = -(-lines // self.slots) if lines else self.least
        return max(self.least, min(wanted, self.most))


def job_of(name: str, task: LineTask, workers: MapWorkers, maps: Sequence[str]) -> JSON:
    worker = {
        "replicas": workers.at_first(task.size),
        "minReplicas": workers.least,
        "maxReplicas": workers.most,
        "restartCount": RESTARTS,
        "template": _template(workers, maps),
    }
    policy = {
        "lastCallSeconds": LAST_CALL_SECONDS,
        "shrinkAfterSeconds": 0,
        "heartbeatTimeoutSeconds": HEARTBEAT_TIMEOUT_SECONDS,
        "shardScaling": {"slotsPerWorker": workers.slots, "idleSeconds": workers.idle_seconds},
    }
    of_the_submission = {"operator": "In", "values": [2]}
    of_the_node = {"operator": "In", "values": [EXIT_NO_LINES, EXIT_NOT_FOUND]}
    return {
        "apiVersion": API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": name, "labels": {names.LABEL_APP: names.APP}},
        "spec": {
            "distributionStrategy": "CustomStrategy",
            "replicaSpecs": {"worker": worker},
            "elasticPolicy": policy,
            "failurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": of_the_submission},
                    # If other nodes lack it too, the third such exit in a row fails the job.
                    {"action": "Replace", "onExitCodes": of_the_node},
                ]
            },
            "runPolicy": {"ttlSecondsAfterFinished": KEPT_SECONDS},
        },
    }


def chunks_of(task: LineTask, lines: Lines | None) -> list[JSON]:
    """Return the data of the ConfigMaps, the first with the task; raise LinesError for too many lines."""
    data: list[JSON] = [{}]
    if lines is not None:
        parts = packed(lines)
        encoded = (base64.b64encode(part).decode() for part in parts)
        data = [
            {"binaryData": {key: text}} for key, text in zip(chunk_names(len(parts)), encoded, strict=True)
        ]
    return [{**data[0], "data": {TASK_FILE: task.to_json()}}, *data[1:]]


def objects(name: str, task: LineTask, lines: Lines | None, workers: MapWorkers) -> list[JSON]:
    """Return the objects to create, in order: the ConfigMaps, and the job.

    Raises:
        LinesError: there are too many lines.
    """
    chunks = chunks_of(task, lines)
    names_of_maps = [config_map_name(name, place) for place in range(len(chunks))]
    return [
        *(config_map(each, name, data) for each, data in zip(names_of_maps, chunks, strict=True)),
        job_of(name, task, workers, names_of_maps),
    ]


def config_map_name(job: str, place: int) -> str:
    return f"{job}-map-{place:04}"


def config_map_names(job: JSON) -> list[str]:
    """Return the ConfigMaps of a job of `dlr map`; empty for another job."""
    volumes = job["spec"]["replicaSpecs"].get("worker", {}).get("template", {}).get("spec", {}).get("volumes")
    for volume in volumes or ():
        if volume["name"] == VOLUME:
            return [source["configMap"]["name"] for source in volume["projected"]["sources"]]
    return []


def task_and_lines(found: Sequence[JSON]) -> tuple[LineTask, Lines | None]:
    """Read the task from the ConfigMaps, given in their order, and the lines if they are included.

    Raises:
        KeyError, TypeError, ValueError: the ConfigMaps are invalid.
    """
    task = LineTask.from_json(found[0]["data"][TASK_FILE])
    if task.lines_path:
        return task, None
    chunks = {key: text for each in found for key, text in (each.get("binaryData") or {}).items()}
    ordered = sorted(key for key in chunks if key.startswith(CHUNK_NAME))
    return task, unpacked(base64.b64decode(chunks[key]) for key in ordered)


def _template(workers: MapWorkers, sources: Sequence[str]) -> JSON:
    template = copy.deepcopy(workers.template)
    spec = template.setdefault("spec", {})
    spec.setdefault("restartPolicy", "Never")
    spec.setdefault("terminationGracePeriodSeconds", GRACE_SECONDS)
    container = spec.setdefault("containers", [{}])[0]
    container.setdefault("name", "main")
    if workers.image:
        container["image"] = workers.image
    container["command"] = [*COMMAND]
    container.pop("args", None)
    resources = container["resources"] = container.get("resources") or {}
    if workers.requests:
        resources["requests"] = {**(resources.get("requests") or {}), **workers.requests}
    mount = {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}
    container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
    volume = {"name": VOLUME, "projected": {"sources": [{"configMap": {"name": name}} for name in sources]}}
    spec["volumes"] = [*(spec.get("volumes") or ()), volume]
    return template
