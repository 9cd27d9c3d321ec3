"""The objects of a launched job: an ElasticJob, and a ConfigMap with its code. Pure.

`dlr job launch` and `dlr.Client().train` both build them here.
"""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controller.wording import counted
from crds import names
from dlr.client.program import FOLDER, Program
from dlr.kube.api import JSON
from dlr.kube.errors import UsageError
from reconcilers.observed.resources import is_quantity, parse

VOLUME = "dlr-code"
LONGEST_STEM = 30
GPU = "nvidia.com/gpu"

_COUNTS = {"workers": 0, "min_workers": 1, "max_workers": 1, "processes": 1, "gpus": 0}
"""Smallest value of each count."""
_VARIABLE = re.compile(r"[A-Za-z_.-][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class JobLaunch:
    """A job to launch. None stands for the value of the job to copy, or for the default."""

    program: Program
    name: str
    workers: int | None = None
    """Number of workers. Default: `min_workers`, or 1."""
    min_workers: int | None = None
    max_workers: int | None = None
    processes: int | None = None
    """Processes per worker. Default: one for each of its GPUs, or one."""
    image: str | None = None
    requests: Mapping[str, str] = field(default_factory=dict)
    gpus: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def new_name(program: Program) -> str:
    """Return the program's name with a suffix that makes it unique."""
    stem = re.sub(r"[^a-z0-9]+", "-", program.filename.removesuffix(".py").lower()).strip("-")
    stem = stem[:LONGEST_STEM].strip("-")
    return f"{stem if stem[:1].isalpha() else f'job-{stem}'.strip('-')}-{secrets.token_hex(3)}"


def objects(launch: JobLaunch, like: JSON | None = None) -> list[JSON]:
    """Return the objects to create, in order: the ConfigMap if code is shipped, and the ElasticJob.

    Args:
        like: an ElasticJob whose spec supplies everything that `launch` does not name.

    Raises:
        UsageError: no image is named, or a count or an amount is invalid, or counts contradict each other.
    """
    _check(launch)
    source = launch.program.source
    code = {"data": {"code": source}}
    maps = [] if source is None else [config_map(config_map_name(launch.name), launch.name, code)]
    return [*maps, _job(launch, like)]


def _check(launch: JobLaunch) -> None:
    """Validate a launch.

    Raises:
        UsageError: a count, an amount or a variable is invalid.
    """
    for name, least in _COUNTS.items():
        value = getattr(launch, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise UsageError(f"{name} is a whole number, {least} or more, and not {value!r}.")
    for name, amount in launch.requests.items():
        if not isinstance(amount, str) or not is_quantity(amount) or parse(amount) < 0:
            raise UsageError(f"{name} is an amount such as '500m', '4' or '2Gi', and not {amount!r}.")
    for name, value in launch.env.items():
        if not isinstance(value, str) or not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise UsageError(f"env has names of variables and their texts, and not {name!r}: {value!r}.")


def config_map_name(job: str) -> str:
    return f"{job}-code"


def config_map(name: str, job: str, data: JSON) -> JSON:
    """Return a ConfigMap of a job, with the given `data` or `binaryData`."""
    labels = {names.LABEL_APP: names.APP, names.LABEL_JOB: job}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, **data}


def owned_by(job: JSON) -> JSON:
    """Return a patch that makes the job the owner of a ConfigMap, which is then deleted with the job."""
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
    }
    return {"metadata": {"ownerReferences": [owner]}}


def _job(launch: JobLaunch, like: JSON | None) -> JSON:
    spec: JSON = copy.deepcopy(like["spec"]) if like else {"replicaSpecs": {}}
    spec.pop("suspend", None)
    worker = spec["replicaSpecs"].setdefault(names.WORKER, {})
    _set_counts(worker, launch)
    template = worker.setdefault("template", {})
    _set_container(template, launch)
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": launch.name, "labels": {names.LABEL_APP: names.APP}},
        "spec": spec,
    }


def _set_counts(worker: JSON, launch: JobLaunch) -> None:
    there = worker.get("replicas", launch.min_workers or 1)
    worker["replicas"] = there if launch.workers is None else launch.workers
    for key, value in (("minReplicas", launch.min_workers), ("maxReplicas", launch.max_workers)):
        if value is not None:
            worker[key] = value
    count, least, most = worker["replicas"], worker.get("minReplicas"), worker.get("maxReplicas")
    if least is not None and count < least:
        raise UsageError(f"{counted(count, 'worker')} cannot be fewer than the minimum of {least}.")
    if most is not None and count > most:
        raise UsageError(f"{counted(count, 'worker')} cannot be more than the maximum of {most}.")


def _set_container(template: JSON, launch: JobLaunch) -> None:
    pod = template.setdefault("spec", {})
    pod.setdefault("restartPolicy", "Never")
    container = pod.setdefault("containers", [{}])[0]
    container.setdefault("name", "main")
    if launch.image:
        container["image"] = launch.image
    if not container.get("image"):
        raise UsageError(
            "Name the image to run in, which has Python and torch: --image, image=…; or a job to be like: "
            "--like, like=…."
        )
    _set_resources(container, launch)
    container["env"] = _with(
        container.get("env"), [{"name": k, "value": _literal(v)} for k, v in launch.env.items()]
    )
    if not container["env"]:
        del container["env"]
    processes = launch.processes or gpus_of(container) or 1
    words = map(_literal, (launch.program.path, *launch.program.arguments))
    container["command"] = ["dlr", "run", f"--nproc-per-node={processes}", *words]
    container.pop("args", None)
    _mount_code(pod, container, launch)


def _literal(text: str) -> str:
    """Escape a text for the kubelet, which turns `$$` into `$`, and `$(NAME)` into a value."""
    return text.replace("$", "$$")


def _set_resources(container: JSON, launch: JobLaunch) -> None:
    resources = container.setdefault("resources", {})
    if launch.requests:
        resources["requests"] = {**(resources.get("requests") or {}), **launch.requests}
    if launch.gpus is not None:
        resources["limits"] = {**(resources.get("limits") or {}), GPU: str(launch.gpus)}
    if not resources:
        del container["resources"]


def gpus_of(container: JSON) -> int:
    count = str(((container.get("resources") or {}).get("limits") or {}).get(GPU, "0"))
    return int(count) if count.isdigit() else 0


def _mount_code(pod: JSON, container: JSON, launch: JobLaunch) -> None:
    """Mount the shipped file in its folder, and drop the file of the copied job."""
    reference = {
        "name": config_map_name(launch.name),
        "items": [{"key": "code", "path": launch.program.filename}],
    }
    shipped = launch.program.source is not None
    for where, key, added in (
        (pod, "volumes", {"name": VOLUME, "configMap": reference}),
        (container, "volumeMounts", {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}),
    ):
        kept = [each for each in where.get(key) or () if each["name"] != VOLUME]
        if shipped or kept:
            where[key] = [*kept, added] if shipped else kept
        else:
            where.pop(key, None)


def _with(there: Sequence[JSON] | None, added: Sequence[JSON]) -> list[JSON]:
    replaced = {each["name"] for each in added}
    return [*(each for each in there or () if each["name"] not in replaced), *added]
