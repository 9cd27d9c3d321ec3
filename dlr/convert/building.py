"""Common part of all conversions: an ElasticJob from a Pod template and counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from crds.names import API_VERSION, LABEL_MANAGED_BY, WORKER
from dlr.client.manifest import gpus_of
from dlr.convert.command import launched
from dlr.convert.reading import JSON, NotConvertible, Reader, Remark

WORLD_VARIABLES = frozenset(
    {
        *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "NODE_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        *("GROUP_RANK", "PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MAX_RESTARTS"),
        *("PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID"),
        *("PET_STANDALONE", "PET_RDZV_CONF"),
    }
)
"""Variables that dlr or torchrun sets."""


@dataclass
class WorkersDraft:
    """Workers of an ElasticJob during the conversion."""

    template: JSON
    replicas: int = 1
    least: int | None = None
    most: int | None = None
    restarts: int | None = None
    restarts_at: str = ""
    """Path of the field with the number of restarts."""
    processes: str | None = None
    """Processes of each Pod: a number, or a word of torchrun; None if only the command has them."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Further fields of the ElasticJob's spec, by path."""

    def limit_restarts(self, reader: Reader, key: str) -> None:
        """Take the number of restarts from a field, in place of an earlier field's."""
        at = f"{reader.path}.{key}"
        if (value := reader.number(key, None)) is None:
            return
        if self.restarts is not None and self.restarts != value:
            reader.remarks.append(Remark(self.restarts_at, f"{self.restarts}: {at}, {value}, counts"))
        self.restarts, self.restarts_at = value, at


def metadata_of(manifest: Reader) -> JSON:
    metadata = manifest.within("metadata")
    name = metadata.take("name")
    if name is None and (prefix := metadata.take("generateName")):
        name = f"{prefix.rstrip('-')}-1"
        why = f"an ElasticJob is called {name} here"
        metadata.remarks.append(Remark("metadata.generateName", why))
    if not isinstance(name, str):
        raise NotConvertible("metadata.name is missing.")
    kept = {"name": name}
    for key in ("namespace", "labels", "annotations"):
        if value := metadata.take(key):
            kept[key] = value
    for key in ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"):
        metadata.take(key)  # printed by `kubectl get -o yaml`
    metadata.finish()
    manifest.take("status")
    return kept


def training_container(template: JSON, names: tuple[str, ...], at: str) -> JSON:
    """Return the container that trains, by one of these names, and move it to the front; else the first."""
    containers = (template.get("spec") or {}).get("containers")
    if not containers:
        raise NotConvertible(f"{at}.spec.containers is empty.")
    for number, container in enumerate(containers):
        if container.get("name") in names:
            containers.insert(0, containers.pop(number))
            break
    first: JSON = containers[0]
    return first


def elastic_job(
    metadata: JSON, workers: WorkersDraft, reader: Reader, at: str, container: JSON | None
) -> JSON:
    """Return the ElasticJob; losses in the container become remarks of the reader.

    Args:
        at: path of the Pod template.
        container: the container that trains; None to keep its command.
    """
    if container is not None:
        _set_command(workers, reader, f"{at}.spec.containers[{container.get('name', 0)}]", container)
    replica: JSON = {"replicas": workers.replicas}
    if workers.least is not None and workers.least != workers.replicas:
        replica["minReplicas"] = workers.least
    if workers.most is not None and workers.most != workers.replicas:
        replica["maxReplicas"] = workers.most
    if workers.restarts is not None:
        replica["restartCount"] = workers.restarts
    labels = (workers.template.get("metadata") or {}).get("labels") or {}
    if (manager := labels.pop(LABEL_MANAGED_BY, None)) is not None:
        why = f"{manager}: dlr manages the Pods, and finds them by it"
        reader.remarks.append(Remark(f"{at}.metadata.labels", why, is_loss=False))
    replica["template"] = workers.template
    spec: JSON = {"replicaSpecs": {WORKER: replica}}
    for path, value in workers.fields.items():
        put(spec, path, value)
    return {"apiVersion": API_VERSION, "kind": "ElasticJob", "metadata": metadata, "spec": spec}


def put(spec: JSON, path: str, value: Any) -> None:
    """Set a field by its path."""
    *parents, last = path.split(".")
    for parent in parents:
        spec = spec.setdefault(parent, {})
    spec[last] = value


def _set_command(workers: WorkersDraft, reader: Reader, where: str, container: JSON) -> None:
    _drop_world_variables(workers, reader, where, container)
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    if not container.get("command"):
        why = "the image's own entry point starts training; say it as `command: [dlr, run, SCRIPT, …]`"
        reader.remarks.append(Remark(f"{where}.command", why))
        return
    if workers.processes in ("auto", "gpu", "cpu"):
        workers.processes = str(gpus_of(container) or 1) if workers.processes == "auto" else workers.processes
    found = launched([str(word) for word in words], workers.processes)
    container["command"] = found.command
    container.pop("args", None)
    workers.least = found.least if workers.least is None else workers.least
    if workers.restarts is None:
        workers.restarts = found.restarts
    elif found.restarts not in (None, workers.restarts):
        why = f"--max-restarts={found.restarts}: {workers.restarts_at}, {workers.restarts}, counts"
        reader.remarks.append(Remark(f"{where}.command", why, is_loss=False))
    for path, text in found.fields.items():
        workers.fields.setdefault(path, True if text == "true" else int(text) if text.isdigit() else text)
    command = f"{where}.command"
    if found.dropped:
        why = f"{' '.join(found.dropped)}: the ElasticJob says it, or dlr decides it"
        reader.remarks.append(Remark(command, why, is_loss=False))
    reader.remarks += [Remark(command, each) for each in found.lost]


def _drop_world_variables(workers: WorkersDraft, reader: Reader, where: str, container: JSON) -> None:
    dropped = [each for each in container.get("env") or () if each.get("name") in WORLD_VARIABLES]
    for each in dropped:
        container["env"].remove(each)
        if each["name"] == "PET_NPROC_PER_NODE" and each.get("value"):
            workers.processes = workers.processes or str(each["value"])
    if dropped:
        names = ", ".join(each["name"] for each in dropped)
        reader.remarks.append(Remark(f"{where}.env", f"{names}: dlr sets them", is_loss=False))
        if not container["env"]:
            del container["env"]


def batch_run_policy(spec: Reader, fields: JSON) -> None:
    """Take over the fields of a run that batch/v1 Jobs, JobSets and PyTorchJobs have in common."""
    for key in ("activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        if (value := spec.number(key, None)) is not None:
            fields[f"runPolicy.{key}"] = value
    if spec.take("suspend"):
        fields["suspend"] = True
    if (manager := spec.take("managedBy")) is not None:
        why = f"{manager} does not manage ElasticJobs" if "multikueue" not in manager else ""
        if why:
            spec.remarks.append(Remark(f"{spec.path}.managedBy", why, is_loss=False))
        else:
            fields["managedBy"] = manager
