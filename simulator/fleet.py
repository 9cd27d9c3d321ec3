"""Fields of a fleet.yaml. Every mistake is reported in one sentence with the field's path."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from crds.grouping import MAX_GROUPS
from crds.model import own_reason
from simulator.times import Section, Times

MAX_NODES = 200_000
MAX_EXTRA_NODES = 64
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=31_536_000)]
Rate = Annotated[float, Field(ge=0, le=1_000_000)]


class FleetError(ValueError):
    """An invalid fleet.yaml; the message names the field."""


class Restart(StrEnum):
    IN_PLACE = "InPlace"
    """Processes restart in their Pods."""
    EVERYBODY = "Everybody"
    """All Pods are recreated, as by controllers without an agent."""


class Kinds(Section):
    """Shares of the failures by kind, scaled to a sum of 1."""

    process: Share = 0.651
    """A process dies, and restarts on the same node: 75 % of failures with hangs (Unicron, DLRover)."""
    hang: Share = 0.099
    """Training hangs (ByteRobust: 9.9 %)."""
    device: Share = 0.162
    """A GPU fails and its driver reports it (the rest, split by FT-HSDP's causes, including noticed SDC)."""
    node: Share = 0.035
    """A node falls silent at once (FT-HSDP: kernel, reboot, disk)."""
    switch: Share = 0.053
    """All nodes of a rack fall silent at once (FT-HSDP)."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not sum(self.model_dump().values()):
            raise ValueError("at least one kind must have a share above 0")
        return self


class BadNodes(Section):
    """Nodes that fail more often than the others, until a repair fixes them."""

    share: Share = 0.0
    times: Annotated[float, Field(ge=1, le=100)] = 5.0


class Bursts(Section):
    """Failures in bursts; the mean rate is unchanged."""

    size: Annotated[int, Field(ge=1, le=1_000)] = 1
    within_seconds: Seconds = 600.0


class Slowdowns(Section):
    """Temporary slowdowns of a node, which slow down all that wait for it."""

    per1000_node_days: Rate = 0.0
    factor: Annotated[float, Field(ge=1, le=100)] = 1.1
    """Factor by which steps take longer (MegaScale: 10 %)."""
    seconds: Seconds = 1_440.0
    """Mean length of a slowdown (Falcon: communication, 24 min)."""


class Corruptions(Section):
    """Silent corruptions: a node computes wrong results."""

    per1000_node_days: Rate = 0.0
    noticed_after_seconds: Seconds = 3_600.0
    """Mean time until it is noticed. Training since then is lost, and resumes from storage."""


class Faults(Section):
    per1000_node_days: Rate = 6.5
    """Failures of good nodes with 8 GPUs each (Meta's RSC-1: 6.5)."""
    kinds: Kinds = Kinds()
    bad_nodes: BadNodes = BadNodes()
    bursts: Bursts = Bursts()
    while_training_only: bool = False
    """Whether failures occur only during training (AIReSim's model)."""
    slowdowns: Slowdowns = Slowdowns()
    corruptions: Corruptions = Corruptions()
    preemptions_per1000_node_days: Rate = 0.0


class Repair(Section):
    """Repairs, automated and then manual; either may wrongly report success (AIReSim)."""

    automated_seconds: Seconds = 7_200.0
    automated_fails: Share = 0.4
    goes_to_manual: Share = 0.8
    manual_seconds: Seconds = 172_800.0
    manual_fails: Share = 0.2


class DiagnosisChances(Section):
    """Accuracy of a node check, by benchmarks/results/diagnosis.md, N=33."""

    faulty_found: Share = 1.0
    """Share of nodes with a hard fault that are found (one of 33: 100 %)."""
    intermittent: Share = 0.0
    """Share of intermittent faults, with which half of the tests pass."""
    intermittent_found: Share = 0.67
    healthy_blamed: Share = 0.0
    straggler_found: Share = 1.0


class Policies(Section):
    restart: Annotated[Restart, Field(strict=False)] = Restart.IN_PLACE
    restart_count: Annotated[int, Field(ge=0, le=1_000)] = 3
    """Failures of one class without new progress that the job may have."""
    standby: Annotated[int, Field(ge=0, le=1_000)] = 0
    shrink_after_seconds: Annotated[int, Field(ge=0, le=86_400)] = 120
    heartbeat_timeout_seconds: Annotated[int, Field(ge=5, le=3_600)] = 30
    hang_timeout_seconds: Annotated[int, Field(ge=10, le=86_400)] = 1_800
    memory_checkpoint_seconds: Annotated[float, Field(gt=0, le=31_536_000)] | Literal["auto"] | None = "auto"
    """Training time between two saves to memory; null for none."""
    replicas: Annotated[int, Field(ge=0, le=1)] = 1
    """Copies of these checkpoints in other Pods."""
    storage_checkpoint_seconds: Annotated[float, Field(gt=0, le=31_536_000)] = 1_800.0
    node_check_before: bool = False
    """Whether all nodes are checked before the first training."""
    node_check_after: bool = False
    """Checks after failures that may be due to hardware, and before a world with new nodes, as by
    `nodeCheck.enabled`."""
    exclude_stragglers: bool = False
    cordon: bool = True
    cordon_limit_percent: Annotated[int, Field(ge=0, le=100)] = 10
    group_nodes: Annotated[int, Field(ge=1, le=MAX_NODES)] | None = None
    """Size of a replica group: `elasticPolicy.replicaGroups.workers` (docs/groups.md)."""


class CapacityChange(Section):
    day: Annotated[float, Field(ge=0)]
    nodes: Annotated[int, Field(ge=-MAX_NODES, le=MAX_NODES)]
    """Number of nodes that are added, or removed if negative."""


class Fleet(Section):
    name: str = "fleet"
    nodes: Annotated[int, Field(ge=1, le=MAX_NODES)]
    """Number of nodes that the job wants."""
    min_nodes: Annotated[int, Field(ge=1, le=MAX_NODES)] | None = None
    """Smallest number of nodes that training continues with; unset: all."""
    max_nodes: Annotated[int, Field(ge=1, le=MAX_NODES)] | None = None
    """Largest number of nodes that the job grows to, into free ones."""
    node_unit: Annotated[int, Field(ge=1, le=1_000)] = 1
    spares: Annotated[int, Field(ge=0, le=MAX_NODES)] = 0
    """Additional nodes."""
    rack_nodes: Annotated[int, Field(ge=1, le=64)] = 16
    """Number of nodes behind one switch."""
    faults: Faults = Faults()
    repair: Repair = Repair()
    diagnosis: DiagnosisChances = DiagnosisChances()
    policies: Policies = Policies()
    capacity: Annotated[tuple[CapacityChange, ...], Field(strict=False)] = ()
    times: Times = Times()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        policies, unit = self.policies, self.node_unit
        if self.nodes % unit:
            raise ValueError(f"nodes must be a multiple of nodeUnit, {unit}")
        if self.min_nodes is not None and self.min_nodes > self.nodes:
            raise ValueError(f"minNodes must not be greater than nodes, {self.nodes}")
        if self.max_nodes is not None and not 0 <= self.max_nodes - self.nodes <= MAX_EXTRA_NODES:
            raise ValueError(f"maxNodes must be between nodes and nodes + {MAX_EXTRA_NODES}")
        if self.max_nodes is not None and self.max_nodes % unit:
            raise ValueError(f"maxNodes must be a multiple of nodeUnit, {unit}")
        size = policies.group_nodes
        if size is not None and (self.nodes % size or size % unit or size >= self.nodes):
            raise ValueError("policies.groupNodes must divide nodes, be less, and be a multiple of nodeUnit")
        if size is not None and self.nodes // size > MAX_GROUPS:
            raise ValueError(
                f"policies.groupNodes must be so large that there are at most {MAX_GROUPS} groups"
            )
        if size is not None and (self.min_nodes is not None or self.max_nodes is not None):
            raise ValueError("policies.groupNodes goes without minNodes and maxNodes")
        return self

    @property
    def failures_per_second(self) -> float:
        """Return the mean failure rate of all nodes that the job wants."""
        faults, bad = self.faults, self.faults.bad_nodes
        weight = self.nodes * (1 + bad.share * (bad.times - 1))
        return faults.per1000_node_days / 1_000 / 86_400 * weight

    @property
    def memory_interval(self) -> float | None:
        """Seconds of training between two saves to memory; None if there are none."""
        seconds = self.policies.memory_checkpoint_seconds
        return self.times.save_interval(self.failures_per_second) if seconds == "auto" else seconds

    def changed(self, **policies: Any) -> Fleet:
        """Return the fleet with these policies, by field name."""
        return self.model_copy(update={"policies": self.policies.model_copy(update=policies)})


_BRANCHES = ("constrained-float", "literal['auto']")
"""Path elements that pydantic adds for a field of two types."""

_WANTED = {
    "int_type": "a whole number, without a comma or a unit",
    "float_type": "a number, without a comma or a unit",
    "bool_type": "true or false",
    "string_type": "a text",
    "model_type": "a map of fields",
    "tuple_type": "a list, such as `[{day: 3, nodes: -64}]`",
}
"""Expected value, by pydantic's type of error. `capacity` is the only list."""


class _Loader(yaml.SafeLoader):
    """Loader that refuses duplicate fields, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                fault = f"the field {key.value!r} is there twice; remove one of them"
                raise yaml.constructor.ConstructorError(None, None, fault, key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_fleet(path: Path) -> Fleet:
    """Read the fleet that a file describes.

    Raises:
        FleetError: the file is invalid; one sentence, with the path of the field.
        OSError: the file cannot be read.
    """
    try:
        data = yaml.load(path.read_text(), _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise FleetError(f"{path}: line {line}: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or no date
        raise FleetError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise FleetError(f"{path} must be a map of fields, such as `nodes: 128`")
    return parsed(data, str(path))


def parsed(data: dict[str, Any], origin: str) -> Fleet:
    """Validate a fleet. Raises FleetError."""
    try:
        return Fleet.model_validate(data)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        unknown = [each for each in errors if each["type"] == "extra_forbidden"]
        first = [*unknown, *errors][0]  # a misspelt field makes another one missing
        where = ".".join(str(step) for step in first["loc"] if str(step) not in _BRANCHES)
        what = own_reason(first["msg"])
        if first["type"] == "extra_forbidden":
            what = "there is no such field"
        elif first["type"] == "missing":
            what = "this field is needed"
        elif first["type"] in _WANTED:
            what = f"it must be {_WANTED[first['type']]}, and is {first['input']!r}"
        elif where and first["type"] not in ("value_error",):
            what = f"{what[0].lower()}{what[1:]}, and it is {first['input']!r}"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise FleetError(f"{origin}: {where}: {what}{more}".replace(": : ", ": ")) from error
