"""Generator of the CRD manifests from the models: `python -m crds.generate` writes crds/yaml/."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.elasticworld import ElasticWorld
from crds.model import Model
from crds.names import GROUP, VERSION
from crds.nodecheck import NodeCheck
from crds.scaleplan import ScalePlan
from crds.schema import structural_schema
from crds.shard_set_status import ShardSet

YAML_FOLDER = Path(__file__).parent / "yaml"


@dataclass(frozen=True)
class Column:
    """Printer column of `kubectl get`; priority 1 shows only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0


@dataclass(frozen=True)
class KindDefinition:
    model: type[Model]
    plural: str
    short_name: str
    columns: tuple[Column, ...]
    scale: dict[str, str] | None = None
    written: str = "status"
    """Part of the object that only the controller writes."""

    @property
    def kind(self) -> str:
        return self.model.__name__

    def manifest(self) -> dict[str, Any]:
        """Return the CustomResourceDefinition object."""
        subresources: dict[str, Any] = {"status": {}} if "status" in self.model.model_fields else {}
        if self.scale:
            subresources["scale"] = self.scale
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "scope": "Namespaced",
                "names": {
                    "kind": self.kind,
                    "listKind": f"{self.kind}List",
                    "plural": self.plural,
                    "singular": self.kind.lower(),
                    "shortNames": [self.short_name],
                    "categories": ["dlr"],
                },
                "versions": [
                    {
                        "name": VERSION,
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": self._schema()},
                        "subresources": subresources,
                        "additionalPrinterColumns": [_column(column) for column in self.columns],
                    }
                ],
            },
        }

    def _schema(self) -> dict[str, Any]:
        schema = structural_schema(self.model)
        schema["properties"] = {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
        } | schema["properties"]
        # No defaults here: the controller compares a status with what it wrote, and an empty one means none.
        schema["properties"][self.written] = _without_defaults(schema["properties"][self.written])
        return schema


def _without_defaults(schema: dict[str, Any]) -> dict[str, Any]:
    result = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in result:
        result["properties"] = {k: _without_defaults(v) for k, v in result["properties"].items()}
    for inner in ("items", "additionalProperties"):
        if inner in result:
            result[inner] = _without_defaults(result[inner])
    return result


def _column(column: Column) -> dict[str, Any]:
    result: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    if column.priority:
        result["priority"] = column.priority
    return result


_AGE = Column("Age", ".metadata.creationTimestamp", "date")

DEFINITIONS = (
    KindDefinition(
        model=ElasticJob,
        plural="elasticjobs",
        short_name="ej",
        columns=(
            Column("Phase", ".status.phase"),
            Column("Desired", ".status.replicaStatuses.worker.desired", "integer"),
            Column("Active", ".status.replicaStatuses.worker.active", "integer"),
            Column("Standby", ".status.replicaStatuses.worker.standby", "integer", priority=1),
            Column("Round", ".status.rendezvous.round", "integer"),
            Column("World", ".status.rendezvous.worldSize", "integer", priority=1),
            Column("Goodput", ".status.goodput.ratio", "number", priority=1),
            Column("Message", ".status.message", priority=1),
            _AGE,
            Column("Reason", ".status.reason"),
        ),
        scale={
            "specReplicasPath": ".spec.replicaSpecs.worker.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    ),
    KindDefinition(
        model=ElasticWorker,
        plural="elasticworkers",
        short_name="ew",
        columns=(
            Column("Rank", ".spec.index", "integer"),
            Column("Node", ".status.nodeName"),
            Column("Phase", ".status.phase"),
            Column("State", ".status.agent.state"),
            Column("Restarts", ".status.restartCount", "integer"),
            Column("Step", ".status.agent.progress.step", "integer"),
            # With these a line is longer than a terminal of 80 columns.
            Column("Standby", ".status.standby", "boolean", priority=1),
            Column("Pod", ".status.podName", priority=1),
            Column("Message", ".status.message", priority=1),
            _AGE,
        ),
    ),
    KindDefinition(
        model=ElasticWorld,
        plural="elasticworlds",
        short_name="eworld",
        columns=(
            Column("Round", ".spec.round", "integer"),
            Column("Phase", ".spec.phase"),
            Column("Members", ".spec.members"),
            Column("Processes", ".spec.worldSize", "integer", priority=1),
            Column("Master", ".spec.masterAddress", priority=1),
            Column("Job", ".spec.jobPhase", priority=1),
            _AGE,
        ),
        written="spec",
    ),
    KindDefinition(
        model=ShardSet,
        plural="shardsets",
        short_name="shs",
        columns=(
            Column("Job", ".spec.jobName"),
            Column("Set", ".spec.setName"),
            Column("Epoch", ".status.epoch", "integer"),
            Column("Size", ".status.size", "integer"),
            Column("Done", ".status.done", "integer"),
            Column("Leased", ".status.leased", "integer", priority=1),
            Column("Waiting", ".status.waiting", "integer", priority=1),
            Column("Failed", ".status.failed", "integer"),
            Column("Reason", ".status.reason", priority=1),
            _AGE,
        ),
    ),
    KindDefinition(
        model=ScalePlan,
        plural="scaleplans",
        short_name="sp",
        columns=(
            Column("Job", ".spec.ownerJob"),
            Column("Phase", ".status.phase"),
            Column("Message", '.status.conditions[?(@.type=="Applied")].message', priority=1),
            _AGE,
        ),
    ),
    KindDefinition(
        model=NodeCheck,
        plural="nodechecks",
        short_name="nc",
        columns=(
            Column("Phase", ".status.phase"),
            Column("Result", '.status.conditions[?(@.type=="Healthy")].reason'),
            Column("Round", ".status.round", "integer"),
            Column("Faulty", ".status.counts.Faulty", "integer"),
            Column("Stragglers", ".status.counts.Straggler", "integer"),
            Column("Inconclusive", ".status.counts.Inconclusive", "integer", priority=1),
            Column("Message", '.status.conditions[?(@.type=="Healthy")].message', priority=1),
            _AGE,
        ),
    ),
)


def render(definition: KindDefinition) -> str:
    """Return the text of the YAML file."""
    header = "# Generated by `python -m crds.generate` from the models in crds/; do not edit.\n"
    manifest = json.loads(json.dumps(definition.manifest()))  # no YAML aliases for values that occur twice
    return header + yaml.safe_dump(manifest, sort_keys=False, width=110)


def file_of(definition: KindDefinition) -> Path:
    return YAML_FOLDER / f"{definition.plural}.yaml"


def main() -> None:
    YAML_FOLDER.mkdir(exist_ok=True)
    for definition in DEFINITIONS:
        file_of(definition).write_text(render(definition))


if __name__ == "__main__":
    main()
