"""Exact arithmetic of Kubernetes' resource quantities, and the resources of a worker's first container.

These are its template's resources, overlaid by its type's from a ScalePlan (`status.resources.<type>` of the
job), and by what the slot needs beyond these (`ElasticWorker.spec.resources`).
https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

import orjson

from controller import wording
from controller.resources import Object
from crds.checkpoint_files import SMALLEST_SLOT_BYTES, slot_count
from crds.elasticjob import ElasticJob
from crds.model import ResourceRequirements
from crds.texts import shortened

BINARY = {suffix: 2 ** (10 * power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
DECIMAL = {suffix: 10 ** (3 * power) for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)}
SMALL = {suffix: Fraction(1, 10 ** (3 * power)) for power, suffix in enumerate(("m", "u", "n"), 1)}
_SCALES = {"": Fraction(1)} | {
    suffix: Fraction(scale) for suffix, scale in (*BINARY.items(), *DECIMAL.items(), *SMALL.items())
}
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE]([+-]?[0-9]{1,2})|([KMGTPE]i|[numkMGTPE]?))"
)
MAX_CHARACTERS = 64
"""Longest quantity that is parsed: arithmetic with numbers of a thousand digits is slow."""


def parse(quantity: str | int) -> Fraction:
    """Return the number of units.

    Raises:
        ValueError: it is not a quantity; the message says so.
    """
    text = str(quantity)
    found = _parsed(text) if len(text) <= MAX_CHARACTERS else None
    if found is None:
        raise ValueError(
            f"{wording.shortened(text, MAX_CHARACTERS)!r} is not a quantity such as 500m, 2 or 1.5Gi"
        )
    return found


@lru_cache(maxsize=1_000)
def _parsed(text: str) -> Fraction | None:
    if (found := _QUANTITY.fullmatch(text)) is None:
        return None
    number, exponent, suffix = found.groups()
    scale = Fraction(10) ** int(exponent) if exponent else _SCALES[suffix]
    return Fraction(number) * scale


def is_quantity(amount: object) -> bool:
    try:
        parse(str(amount))
    except ValueError:
        return False
    return True


def whole(quantity: str | int) -> int:
    """Return the quantity in whole units, rounded up, as Kubernetes rounds.

    Raises:
        ValueError: it is not a quantity.
    """
    return math.ceil(parse(quantity))


def format_bytes(count: int) -> str:
    """Return the shortest exact quantity: `24Gi`, `3G`, `1500`."""
    scales = {**BINARY, **DECIMAL}
    exact = [f"{count // scale}{suffix}" for suffix, scale in scales.items() if count % scale == 0]
    return min([str(count), *exact], key=len)


KINDS = ("limits", "requests")
_REFUSED_AMOUNT = (
    r"requested: (?:\S*,)?(?:requests\.|limits\.)?{0}=|"  # a quota, and only what is used up
    r"\bm(?:ax|in)imum {0} usage\b|(?<!\S){0} max limit to request ratio|"  # a LimitRange's
    r"\[{0}\]|resources\.(?:limits|requests)\S*: [^;]*(?<!\S){0}(?!\S)|"  # of validation
    r"denied (?:the )?request\b.*\b{0}\b"  # of a webhook or a policy
)
"""Messages of an API server that refuses a Pod for its amount of one resource."""
_DIGEST_CHARACTERS = 16


def resources_of(job: ElasticJob, type_: str, own: ResourceRequirements | None) -> Object:
    """Return the first container's `resources` in the next Pod of a slot of this type.

    The slot's own count where they are larger: more for all workers does not mean less for this one.
    """
    container = job.spec.replica_specs[type_].template["spec"]["containers"][0]
    resources = dict(mapping(container.get("resources")))
    for kind, amounts in _layer(job.status.resources.get(type_)).items():
        resources[kind] = {**mapping(resources.get(kind)), **amounts}
    for kind, amounts in _layer(own).items():
        others = mapping(resources.get(kind))
        more = {name: amount for name, amount in amounts.items() if _is_more(amount, others.get(name))}
        if more:
            resources[kind] = {**others, **more}
    return resources


def limits_of(container: Object) -> Object:
    return mapping(mapping(container.get("resources")).get("limits"))


def resources_digest(resources: Object) -> str:
    """Return a digest that shows whether a Pod is up to date; `1Gi` and `1024Mi` are the same."""
    amounts = {
        kind: {name: _amount(quantity) for name, quantity in mapping(resources.get(kind)).items()}
        for kind in KINDS
    }
    return hashlib.sha256(json.dumps(amounts, sort_keys=True).encode()).hexdigest()[:16]


def template_digest(job: ElasticJob, type_: str) -> str:
    """Return the digest of the template and variables of a type's Pods, without resources."""
    spec, memory = job.spec.replica_specs[type_], job.spec.replica_specs[type_].memory_checkpoint
    template = spec.template
    first, *others = template["spec"]["containers"]
    first = {key: value for key, value in first.items() if key != "resources"}
    rest = template | {"spec": template["spec"] | {"containers": [first, *others]}}
    more = [] if memory is None else [memory.to_wire()]
    text = orjson.dumps([rest, job.spec.envs, job.spec.agent.inject, *more], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:_DIGEST_CHARACTERS]


def memory_checkpoint_fault(job: ElasticJob, type_: str) -> str | None:
    """Return why checkpoints in memory do not fit into a Pod of this type; None if they do. Pure."""
    asked = job.spec.replica_specs[type_].memory_checkpoint
    if asked is None:
        return None
    path = f"spec.replicaSpecs.{type_}.memoryCheckpoint.size"
    if whole(asked.size) < 1:
        return f"{path}: {asked.size} is no amount of memory"
    count = slot_count(1, asked.replicas)  # the agent knows how many processes a Pod has
    if whole(asked.size) < count * SMALLEST_SLOT_BYTES:
        return (
            f"{path}: {asked.size} is too little: each process has {count} slots, which take "
            f"{SMALLEST_SLOT_BYTES >> 10}Ki each at least; a size has a unit, such as 20Gi"
        )
    resources = resources_of(job, type_, None)
    for kind in KINDS:
        amount = mapping(resources.get(kind)).get("memory")
        if amount is not None and is_quantity(amount) and parse(asked.size) >= parse(amount):
            return (
                f"{path}: {asked.size} does not fit into the first container's resources.{kind}.memory of "
                f"{amount}, which training needs too: raise that, or lower the size"
            )
    return None


def is_for_amount(refusal: str, resource: str) -> bool:
    """Return whether a Pod was refused for its amount of this resource."""
    return re.search(_REFUSED_AMOUNT.format(re.escape(resource)), refusal) is not None


def quantity_fault(template: Object, path: str) -> str | None:
    """Return path and text of the first invalid amount; the API server gives no path. Pure."""
    for part in ("containers", "initContainers"):
        for place, container in enumerate(template["spec"].get(part) or ()):
            for kind in KINDS:
                for name, amount in mapping(mapping(container.get("resources")).get(kind)).items():
                    if not is_quantity(amount):
                        shown = shortened(str(amount), MAX_CHARACTERS)
                        where = f"{path}.spec.{part}[{place}].resources.{kind}.{name}"
                        return f"{where}: {shown!r} is no quantity, such as 500m or 2Gi"
    return None


def mapping(found: Any) -> Object:
    """Return a part of a template, which may be null."""
    return found or {}


def _layer(resources: ResourceRequirements | None) -> dict[str, Object]:
    """Return the amounts by kind, where there are any."""
    return {kind: amounts for kind, amounts in (resources.to_wire() if resources else {}).items() if amounts}


def _is_more(amount: Any, other: Any) -> bool:
    try:
        return other is None or parse(amount) > parse(other)
    except ValueError:
        return True


def _amount(quantity: Any) -> str:
    try:
        return str(parse(quantity))
    except ValueError:  # the API server will refuse the Pod, and say why
        return str(quantity)
