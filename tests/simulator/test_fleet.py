"""What a fleet.yaml may say, and the one sentence about what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.fleet import FleetError, parsed, read_fleet
from simulator.times import Times

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "simulate").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_fleets(path: Path) -> None:
    assert read_fleet(path).nodes


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({}, "f.yaml: nodes: this field is needed"),
        ({"node": 8}, "f.yaml: node: there is no such field (and 1 more)"),
        ({"nodes": 0}, "f.yaml: nodes: input should be greater than or equal to 1, and it is 0"),
        ({"nodes": 8, "spaers": 1}, "f.yaml: spaers: there is no such field"),
        ({"nodes": 8, "policies": {"standby": "x"}}, "f.yaml: policies.standby: it must be a whole number"),
        ({"nodes": 8, "minNodes": 9}, "f.yaml: minNodes must not be greater than nodes, 8"),
        ({"nodes": 8, "times": {"podSecond": 1}}, "f.yaml: times.podSecond: there is no such field"),
        ({"nodes": 8, "times": {"podSeconds": "soon"}}, "f.yaml: times.podSeconds: it must be a number, without a comma or a unit"),
        ({"nodes": 9, "policies": {"groupNodes": 4}}, "f.yaml: policies.groupNodes must divide nodes"),
        ({"nodes": 4002, "policies": {"groupNodes": 2}},
         "f.yaml: policies.groupNodes must be so large that there are at most 1000 groups"),
        ({"nodes": 8, "faults": {"kinds": {k: 0 for k in ("process", "hang", "device", "node", "switch")}}},
         "f.yaml: faults.kinds: at least one kind must have a share above 0"),
        ({"nodes": 8, "policies": {"memoryCheckpointSeconds": "often"}},
         "f.yaml: policies.memoryCheckpointSeconds: it must be a number, without a comma or a unit"),
        ({"nodes": 8, "capacity": {}}, "f.yaml: capacity: it must be a list, such as `[{day: 3, nodes: -64}]`"),
        ({"nodes": "2,048"}, "f.yaml: nodes: it must be a whole number, without a comma or a unit, and is '2,048'"),
        ({"nodes": 8, "policies": {"standby": True}}, "f.yaml: policies.standby: it must be a whole number"),
        ({"nodes": 8, "faults": 6.5}, "f.yaml: faults: it must be a map of fields, and is 6.5"),
        ({"nodes": 8, "policies": {"cordon": "maybe"}}, "f.yaml: policies.cordon: it must be true or false"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_with_the_path_of_the_field(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FleetError) as caught:
        parsed(said, "f.yaml")
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["nodes: [", "- 1", "", "\x00"])
def test_a_file_that_is_no_fleet_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(FleetError, match=r"fleet\.yaml"):
        read_fleet(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nodes: 8\nnodes: 9\n", "line 2: the field 'nodes' is there twice; remove one of them"),
        ("nodes: 8\npolicies: {standby: 1, standby: 2}", "line 2: the field 'standby' is there twice"),
        ("nodes: 8\ntimes: &t {podSeconds: 1}\n? [a]\n: 3\n", "line 3: "),
    ],
)
def test_a_field_that_is_there_twice_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(FleetError) as caught:
        read_fleet(path)
    assert str(caught.value).startswith(f"{path}: {sentence}")


def test_each_time_has_a_source() -> None:
    without = {name for name, field in Times.model_fields.items() if not field.description}
    assert without == {"restart_seconds", "peer_loss_seconds"}


def test_a_user_replaces_times() -> None:
    times = parsed({"nodes": 8, "times": {"podSeconds": 12}}, "f.yaml").times
    assert times.pod_seconds == 12 and times.step_seconds == Times().step_seconds


def test_the_matrix_is_the_measured_one() -> None:
    """benchmarks/results/diagnosis.md, N=33: a hard fault, and one of which half of the tests pass."""
    page = (Path(__file__).parents[2] / "benchmarks" / "results" / "diagnosis.md").read_text()
    diagnosis = parsed({"nodes": 8}, "f.yaml").diagnosis
    hard = f"| N=33, k=1 | {diagnosis.faulty_found * 100:g} · "
    half = f"| N=33, k=1, p=0.5 | {diagnosis.intermittent_found * 100:g} · "
    for row in (hard, half):
        (line,) = (line for line in page.splitlines() if line.startswith(row))
        blamed = line.split("|")[3].split("·")[0]
        assert float(blamed) == diagnosis.healthy_blamed
