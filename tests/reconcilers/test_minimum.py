"""With how few workers a job goes on: its own field, its command, its environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from crds.elasticjob import ElasticJob
from reconcilers.observed.minimum import minimum_workers
from tests.reconcilers.build import job

DLROVER = "dlrover-run --nnodes=1:$NODE_NUM --nproc_per_node=1 --max_restarts=1 examples/train.py --lr 1"
SCRIPT = """\
set -e
# dlrover-run --nnodes=3:$NODE_NUM was too much
pip install -r requirements.txt && cd /work
torchrun \\
  --nnodes \\
  2:$NODE_NUM --nproc-per-node=8 train.py
"""


def with_container(replicas: int = 4, container: Any = None, **spec: Any) -> ElasticJob:
    main = {"name": "main", "image": "x"} | (container or {})
    return job(replicas=replicas, template={"spec": {"containers": [main]}}, **spec)


@pytest.mark.parametrize(
    ("container", "minimum"),
    [
        ({"command": ["/bin/bash", "-c", DLROVER]}, 1),
        ({"command": ["sh", "-c"], "args": [DLROVER]}, 1),
        ({"command": ["sh", "-c", SCRIPT]}, 2),
        ({"command": ["torchrun", "--nnodes=2:4", "train.py"]}, 2),
        ({"command": ["torchrun"], "args": ["--nnodes", "2:$(NODE_NUM)", "train.py"]}, 2),
        ({"args": ["--nnodes=3:4", "train.py"]}, 3),
        ({"command": ["sh", "-c", 'torchrun --nnodes="2:$NODE_NUM" train.py']}, 2),
        ({"command": ["bash", "-c", "bash -c 'torchrun --nnodes=2:4'"]}, 2),
        ({"command": ["sh", "-c", "(torchrun --nnodes=2:$(NODE_NUM)) || exit 1"]}, 2),
        ({"command": ["sh", "-c", "torchrun --nnodes=${LEAST:-2}:${NODE_NUM:-8} train.py"]}, 2),
        (
            {"command": ["sh", "-c", "torchrun --nnodes=$LEAST:4"], "env": [{"name": "LEAST", "value": "3"}]},
            3,
        ),
        ({"command": ["torchrun", "--nnodes=2:4", "train.py", "--nnodes=1:4"]}, 2),
        # torch's own variable, and that a flag wins over it
        ({"command": ["torchrun", "x.py"], "env": [{"name": "PET_NNODES", "value": "2:4"}]}, 2),
        ({"env": [{"name": "PET_NNODES", "value": "1:$(NODE_NUM)"}]}, 1),
        ({"args": ["--nnodes=3:4"], "env": [{"name": "PET_NNODES", "value": "2:4"}]}, 3),
        # not elastic, or not to be made out: no fewer than all
        ({"command": ["sh", "-c", "dlrover-run --nnodes=$NODE_NUM train.py"]}, 4),
        ({"command": ["torchrun", "--nnodes=2", "train.py"]}, 4),
        ({"command": ["torchrun", "--nnodes=a:b"]}, 4),
        ({"command": ["torchrun", "--nnodes=3:2"]}, 4),
        ({"command": ["sh", "-c", "torchrun --nnodes=$LEAST:4"]}, 4),
        ({"command": ["sh", "-c", "torchrun --nnodes=$((NODE_NUM / 2)):4"]}, 4),
        ({"command": ["sh", "-c", "torchrun --nnodes=$(nproc):4"]}, 4),
        ({"command": ["sh", "-c", "# torchrun --nnodes=1:4\ntrue"]}, 4),
        ({"command": ["x", "--my--nnodes=1:4", "---nnodes=1:4", "--nnodesx=1:4"]}, 4),
        ({}, 4),
        # bounds
        ({"args": ["--nnodes=0:4"]}, 1),
        ({"args": ["--nnodes=9:16"]}, 4),
    ],
)
def test_command_lines(container: dict[str, Any], minimum: int) -> None:
    assert minimum_workers(with_container(container=container)) == minimum


def test_dlrover_s_example_may_shrink_to_one() -> None:
    example = Path(__file__).parents[2] / "e2e" / "fixtures" / "dlrover-elasticjob.yaml"
    assert minimum_workers(ElasticJob.model_validate(yaml.safe_load(example.read_text()))) == 1


def test_the_job_s_own_field_wins() -> None:
    command = {"args": ["--nnodes=1:4"]}
    assert minimum_workers(with_container(container=command, worker={"minReplicas": 3})) == 3


def test_the_job_s_variables_count_and_the_container_s_come_first() -> None:
    assert minimum_workers(with_container(envs={"PET_NNODES": "2:4"})) == 2
    assert minimum_workers(with_container(envs={"PET_NNODES": {"value": "2:4"}})) == 2
    own = {"env": [{"name": "PET_NNODES", "value": "3:4"}]}
    assert minimum_workers(with_container(container=own, envs={"PET_NNODES": "2:4"})) == 3


def test_variable_that_comes_from_elsewhere_is_not_known() -> None:
    secret = {"secretKeyRef": {"name": "a", "key": "b"}}
    elsewhere = {"args": ["--nnodes=$NODE_NUM:9"], "env": [{"name": "NODE_NUM", "valueFrom": secret}]}
    assert minimum_workers(with_container(replicas=6, container=elsewhere)) == 6
    elsewhere["args"] = ["--nnodes=2:$NODE_NUM"]
    assert minimum_workers(with_container(replicas=6, container=elsewhere)) == 6


def test_minimum_is_of_whole_node_units() -> None:
    unit = {"nodeUnit": 2}
    assert minimum_workers(with_container(6, {"args": ["--nnodes=1:$NODE_NUM"]}, elasticPolicy=unit)) == 2
    assert minimum_workers(with_container(6, {"args": ["--nnodes=3:$NODE_NUM"]}, elasticPolicy=unit)) == 4
    assert minimum_workers(with_container(6, worker={"minReplicas": 5}, elasticPolicy=unit)) == 6


def test_job_without_workers_has_no_minimum() -> None:
    assert minimum_workers(with_container(0, {"args": ["--nnodes=1:4"]})) == 0
    only_ps = {"ps": {"replicas": 2, "template": {"spec": {"containers": [{"name": "a", "image": "x"}]}}}}
    spec = {"distributionStrategy": "ParameterServerStrategy", "replicaSpecs": only_ps}
    assert minimum_workers(ElasticJob.model_validate({"metadata": {"name": "ps"}, "spec": spec})) == 0


@given(
    units=st.integers(0, 20),
    unit=st.integers(1, 8),
    text=st.one_of(st.text(), st.from_regex(r"--nnodes[= ]\d{0,2}:?[\d$A-Z_]{0,9}", fullmatch=True)),
)
def test_minimum_is_always_a_size_the_world_may_have(units: int, unit: int, text: str) -> None:
    owner = with_container(units * unit, {"args": [text]}, elasticPolicy={"nodeUnit": unit})
    minimum = minimum_workers(owner)
    assert 0 <= minimum <= units * unit and minimum % unit == 0
    assert minimum > 0 or units == 0


@given(least=st.integers(0, 50), replicas=st.integers(1, 50))
def test_range_to_the_number_of_nodes_gives_its_lower_end(least: int, replicas: int) -> None:
    for written in (f"--nnodes={least}:$NODE_NUM", f"--nnodes {least}:${{WORKER_NUM}}"):
        owner = with_container(replicas, {"command": ["sh", "-c", f"torchrun {written} train.py"]})
        assert minimum_workers(owner) == min(max(least, 1), replicas)
