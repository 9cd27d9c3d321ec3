"""The resources that a ScalePlan requests for a type: as a container's, and whether they fit. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from crds.elasticjob import ElasticJob
from crds.model import ResourceRequirements
from reconcilers.observed.resources import (
    KINDS,
    format_bytes,
    mapping,
    memory_checkpoint_fault,
    parse,
    resources_of,
)
from reconcilers.observed.slots import slot_count, training_types
from reconcilers.observed.suitable import Sizes, allocatable, amount_of, amounts_of, others_of

Quantities = Mapping[str, str | int]


@dataclass(frozen=True)
class Amounts:
    """Requested amounts, by resource name."""

    path: str
    """Path of the field, for messages."""
    quantities: Quantities
    parsed: Mapping[str, Fraction]

    @classmethod
    def parse(cls, asked: Quantities, path: str) -> Amounts:
        """Parse quantities.

        Raises:
            ValueError: one is no quantity that a Pod can have; the message has its path.
        """
        parsed = {}
        for name, quantity in asked.items():
            try:
                parsed[name] = parse(quantity)
            except ValueError as error:
                raise ValueError(f"{path}[{name}]: {error}") from error
            if parsed[name] < 0:
                raise ValueError(f"{path}[{name}]: {quantity} is negative")
            if "/" in name and parsed[name].denominator != 1:  # the API server would refuse Pods with it
                raise ValueError(f"{path}[{name}]: {quantity} is not a whole number")
        return cls(path, asked, parsed)


def requirements(job: ElasticJob, type_: str, asked: Quantities) -> ResourceRequirements:
    """The amounts as requests and limits: as both, unless the container has only one of a resource."""
    present = resources_of(job, type_, None)
    kinds: dict[str, dict[str, str | int]] = {kind: {} for kind in KINDS}
    for name, quantity in asked.items():
        named = [kind for kind in KINDS if name in mapping(present.get(kind))]
        for kind in named or KINDS:
            kinds[kind][name] = quantity
    return ResourceRequirements.model_validate(kinds)


def merged_resources(
    present: ResourceRequirements | None, asked: ResourceRequirements
) -> ResourceRequirements:
    present = present or ResourceRequirements()
    return ResourceRequirements(
        limits={**present.limits, **asked.limits}, requests={**present.requests, **asked.requests}
    )


def too_large(job: ElasticJob, type_: str, amounts: Amounts, sizes: Sizes) -> str:
    """Why no node of the cluster could ever run such a Pod; empty if one could, or there are no nodes."""
    beside = amounts_of(others_of(job.spec.replica_specs[type_].template["spec"]))
    needed = {name: amount + beside.get(name, Fraction(0)) for name, amount in amounts.parsed.items()}
    for name, amount in needed.items():
        if not sizes.nodes or not amount:
            continue
        asked = f"{amounts.path}[{name}]: no node has {amounts.quantities[name]}"
        most = sizes.largest.get(name)
        if most is None or not allocatable(most, name):
            return f"{asked}: none has any {name}"
        if allocatable(most, name) >= amount:
            continue
        more = " beside the Pod's other containers" if beside.get(name) else ""
        had = (most.get("status") or {})["allocatable"][name]
        return f"{asked}{more}; {most['metadata']['name']} has most, {had}"
    if sizes.nodes and next(sizes.with_room_for(needed), None) is None:
        together = " and ".join(f"{name} {amounts.quantities[name]}" for name in needed)
        return f"{amounts.path}: no node has {together} together"
    return ""


def too_small(job: ElasticJob, type_: str, asked: Quantities) -> str:
    """Why the job's in-memory checkpoints do not fit into a Pod with these amounts; empty if they do."""
    if "memory" not in asked:
        return ""
    merged = merged_resources(job.status.resources.get(type_), requirements(job, type_, asked))
    changed = job.having(resources={**job.status.resources, type_: merged})
    return memory_checkpoint_fault(changed, type_) or ""


def too_much_in_all(
    job: ElasticJob, replicas: Mapping[str, int], resources: Mapping[str, ResourceRequirements]
) -> str:
    """Message that the job would exceed its `resourceLimits` with these counts and resources; empty if it
    would not, or exceeds them already and would request no more than now."""
    present, total = _in_all(job, {}, {}), _in_all(job, replicas, resources)
    for name, limit in job.spec.resource_limits.items():
        amount = total.get(name, Fraction(0))
        if amount > max(amount_of(limit), present.get(name, Fraction(0))):
            has = f"the job would request {_text_of(amount)} of {name} in total"
            return f"{has}, more than its resourceLimits, {limit}"
    return ""


def _in_all(
    job: ElasticJob, replicas: Mapping[str, int], resources: Mapping[str, ResourceRequirements]
) -> dict[str, Fraction]:
    """All resources that the job requests with these counts and resources in place of its own."""
    merged = {**job.status.resources}
    for type_, asked in resources.items():
        merged[type_] = merged_resources(merged.get(type_), asked)
    changed = job.having(resources=merged)
    total: dict[str, Fraction] = {}
    for type_ in training_types(job):
        spec = job.spec.replica_specs[type_]
        first = {"resources": resources_of(changed, type_, None)}
        a_pod = amounts_of([first, *others_of(spec.template["spec"])])
        for name, amount in a_pod.items():
            count = slot_count(spec, replicas.get(type_))
            total[name] = total.get(name, Fraction(0)) + count * amount
    return total


def _text_of(amount: Fraction) -> str:
    return format_bytes(int(amount)) if amount.denominator == 1 else str(float(amount))
