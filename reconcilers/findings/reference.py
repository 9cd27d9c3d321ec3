"""The speed of a class of hardware when its nodes were new, in an annotation of each Node. Pure.

A check compares nodes with one another, so a fleet that is slow as a whole looks healthy. Each Node keeps the
typical figures of its class from the first check that it passed, as long as it is of that class. The medians
of these figures over the nodes of a check are its references. `NodeRecordReconciler` writes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from statistics import median
from typing import Any

from pydantic import ValidationError

from crds import names
from crds.cordon import kept_on
from crds.findings import Figures, Verdict
from crds.model import Model
from crds.nodecheck import ClassSpeed, NodeCheck
from crds.ranges import from_text, to_text
from healthcheck.fleet import Node
from healthcheck.measurements import Metric, is_plausible, rounded

MAX_CLASSES = 32


class Reference(Model):
    """The typical figures of a class of hardware in one check."""

    hardware_class: str
    figures: Figures
    """Medians, by metric."""
    time: datetime


def read_reference(node: Mapping[str, Any]) -> Reference | None:
    """Return the reference of a raw Node; None if there is none that can be read."""
    written = kept_on(node, names.ANNOTATION_REFERENCE)
    return _parsed(written) if written is not None else None


@lru_cache(1024)
def _parsed(written: str) -> Reference | None:
    """Parse a text once for all nodes that have it from the same check."""
    try:
        return Reference.model_validate_json(written)
    except ValidationError:
        return None


def write_reference(reference: Reference) -> str:
    return reference.model_dump_json(by_alias=True)


def references_on(
    fleet: Iterable[Node], nodes: Mapping[str, Mapping[str, Any]]
) -> dict[tuple[str, Metric], float]:
    """Return the medians of a check's nodes' references, by class and metric; `nodes` are the raw Nodes."""
    found: defaultdict[tuple[str, Metric], list[float]] = defaultdict(list)
    metrics = {metric.value: metric for metric in Metric}
    for node in fleet:
        reference = read_reference(nodes[node.name]) if node.name in nodes else None
        if reference is not None and reference.hardware_class == node.hardware_class:
            for name, value in reference.figures.items():
                if name in metrics and is_plausible(value):
                    found[node.hardware_class, metrics[name]].append(value)
    return {key: median(values) for key, values in found.items()}


def speeds_of(typical: Mapping[tuple[str, Metric], float], fleet: Iterable[Node]) -> list[ClassSpeed]:
    """Return the speeds of the classes of a check's nodes, from `healthcheck.stragglers.references_of`."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, node in enumerate(fleet):
        places[node.hardware_class].append(place)
    figures: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for (class_, metric), value in typical.items():
        if class_:
            figures[class_][metric.value] = rounded(value)
    return [
        ClassSpeed(hardware_class=class_, nodes=to_text(places[class_]), figures=found)
        for class_, found in sorted(figures.items())[:MAX_CLASSES]
    ]


def references_left_by(check: NodeCheck, verdicts: Mapping[str, Verdict]) -> dict[str, Reference]:
    """Return the references from a check for the nodes that it found healthy, by name."""
    status, left = check.status, dict[str, Reference]()
    if status.completion_time is None:
        return left
    for speed in status.class_speeds:
        reference = Reference(
            hardware_class=speed.hardware_class, figures=speed.figures, time=status.completion_time
        )
        names_of_class = (status.nodes[place] for place in from_text(speed.nodes))
        left |= {name: reference for name in names_of_class if verdicts.get(name) is Verdict.HEALTHY}
    return left
