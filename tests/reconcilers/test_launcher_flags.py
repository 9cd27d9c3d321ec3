"""What a job is told of flags of `dlrover-run` that its Pods do not obey."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.elasticjob import ElasticJob
from crds.job_status import JobWarning
from crds.model import MAX_CONDITION_MESSAGE
from reconcilers.conditions.pods import LAUNCHER_FLAGS_IGNORED, ignored_flags
from reconcilers.observed.command import MAX_TEXT, command_words, launches_in
from reconcilers.observed.minimum import MAX_WORDS, expanded_words
from tests.reconcilers.build import NOW, job, later
from tests.reconcilers.judging import judge

CHECK = "--network-check: set the job's spec.nodeCheck.enabled: true"
UNIT = "--node-unit=2: set the job's spec.elasticPolicy.nodeUnit: 2"

CHAOS = """\
(bash start_chaos.sh user-case &)
&& dlrover-run --network-check \\
  --nnodes=3:$NODE_NUM --rdzv_conf lastcall_timeout=90 \\
  examples/train.py --node-unit=8
"""


def with_container(replicas: int = 4, container: Any = None, **spec: Any) -> ElasticJob:
    main = {"name": "main", "image": "x"} | (container or {})
    return job(replicas=replicas, template={"spec": {"containers": [main]}}, **spec)


def bash(text: str) -> dict[str, Any]:
    return {"command": ["/bin/bash", "-c", text]}


@pytest.mark.parametrize(
    ("container", "told"),
    [
        ({"command": ["dlrover-run", "--network-check", "train.py"]}, [CHECK]),
        ({"command": ["dlrover-run"], "args": ["--node_unit", "2", "train.py"]}, [UNIT]),
        ({"command": ["/opt/bin/dlrover-run", "--network_check", "train.py", "--node-unit=2"]}, [CHECK]),
        ({"command": ["sh", "-c", 'exec "$0" "$@"', "dlrover-run", "--network-check", "t.py"]}, [CHECK]),
        (
            bash(CHAOS),
            [CHECK, "--rdzv-conf lastcall_timeout=90: set the job's spec.elasticPolicy.lastCallSeconds: 90"],
        ),
        (bash("cd x && exec dlrover-run --nnodes=$((NODE_NUM / 2)):4 --network-check t.py"), [CHECK]),
        (bash("dlrover-run --nproc-per-node=$(nvidia-smi -L | wc -l) --network-check t.py"), [CHECK]),
        (bash("dlrover-run --nproc-per-node=`nproc` --node-unit='2' t.py"), [UNIT]),
        (bash("dlrover-run --node-unit=${UNIT:-2} t.py"), [UNIT]),
        (bash("dlrover-run --node-unit=$UNIT t.py") | {"env": [{"name": "UNIT", "value": "2"}]}, [UNIT]),
        (bash("dlrover-run --node-unit=$(UNIT) t.py") | {"env": [{"name": "UNIT", "value": "2"}]}, [UNIT]),
        (bash("bash -c 'dlrover-run --network-check train.py'"), [CHECK]),
        (bash("dlrover-run --network-check 'train.py"), [CHECK]),
        (bash("dlrover-run --help; other --network-check"), []),
        (bash("pip install dlrover-run\npython train.py --network-check"), []),
        (bash("# dlrover-run --network-check t.py\ntorchrun t.py"), []),
        (bash("torchrun --network-check t.py"), []),
        (bash("my-dlrover-run --network-check t.py"), []),
        (bash("dlrover-run --nnodes=1:4 --accelerator=nvidia.com/gpu --numa-affinity train.py"), []),
        (bash("dlrover-run --node-unit=1 --precheck=0 train.py"), []),
        (bash("dlrover-run --auto-config train.py"), [CHECK.replace("network-check", "auto-config")]),
        ({}, []),
    ],
)
def test_flags_in_commands(container: dict[str, Any], told: list[str]) -> None:
    assert ignored_flags(with_container(container=container)) == told


def test_what_the_job_says_itself_is_not_told() -> None:
    command = bash("dlrover-run --network-check --precheck=1 --exclude-straggler --node-unit=2 t.py")
    assert len(ignored_flags(with_container(container=command))) == 4
    policies = {"nodeCheck": {"enabled": True}, "elasticPolicy": {"nodeUnit": 2}}
    told = ignored_flags(with_container(container=command, **policies))
    assert told == ["--exclude-straggler: set the job's spec.nodeCheck.excludeStragglers: true"]
    other = ignored_flags(with_container(container=command, **policies | {"elasticPolicy": {"nodeUnit": 4}}))
    assert UNIT in other


def test_automatic_configuration_checks_nodes_from_four_on() -> None:
    command = bash("dlrover-run --auto-config train.py")
    assert [bool(ignored_flags(with_container(count, command))) for count in (3, 4)] == [False, True]


def warned(found: ElasticJob, seconds: float = 0) -> list[JobWarning]:
    return judge(found, now=later(seconds))[0].status.warnings


def test_the_warning_is_there_before_a_pod_is_and_goes_with_the_flags() -> None:
    command = bash("dlrover-run --network-check --auto-tunning train.py")
    told = warned(with_container(container=command))
    (found,) = told
    assert (found.type, found.since) == (LAUNCHER_FLAGS_IGNORED, NOW)
    assert found.message == (
        f"not obeyed by dlrover-run: {CHECK}; --auto-tunning: nothing here tunes batch size or learning rate"
    )
    wire = {"warnings": [w.to_wire() for w in told]}
    again = warned(with_container(container=command, status=wire), 9)
    assert again == told
    assert not warned(with_container(container=bash("dlrover-run train.py"), status=wire), 9)


def test_a_message_is_bounded() -> None:
    command = bash(f"dlrover-run --node-unit={'9' * 9_000} train.py")
    (found,) = warned(with_container(container=command))
    assert len(found.message) == MAX_CONDITION_MESSAGE


@given(st.lists(st.text(alphabet="d-=$(){}'\"`\\\n #;&|x1 ", max_size=40), max_size=4))
def test_no_command_is_too_odd_to_be_read(words: list[str]) -> None:
    text = "".join(word.replace("d", "dlrover-run ").replace("x", "--network-check ") for word in words)
    for command in ([text], ["sh", "-c", text], ["dlrover-run", *words]):
        for launch in launches_in(command_words({"command": command})):
            assert launch.flags is not None
        ignored_flags(with_container(container={"command": command}))


class Counted(list[str]):
    """Words that count how often one is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.looks += 1
        return super().__getitem__(place)


def looks_at(words: list[str]) -> int:
    counted = Counted(words)
    assert not list(launches_in(counted))
    return counted.looks


@pytest.mark.parametrize("unit", ["python -W", "python -X", "python -u", "python", "dlr", "a"])
def test_a_command_is_read_in_linear_time(unit: str) -> None:
    few, many = (looks_at(unit.split() * count) for count in (100, 1_000))
    assert many <= 10.1 * few


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("python -W ignore -u train.py; torchrun a.py", ["torchrun"]),
        ("python -u; torchrun a.py", ["torchrun"]),
        ("python -W; python -m torch.distributed.run a.py", ["torchrun"]),
        ("python -c 'torchrun x'", ["torchrun"]),
    ],
)
def test_behind_a_python_of_something_else_the_search_goes_on(text: str, found: list[str]) -> None:
    assert [launch.name for launch in launches_in(command_words(bash(text)))] == found


def test_variables_make_a_command_no_longer_than_a_command_may_be() -> None:
    many = expanded_words(["--rdzv-conf", "$A"] * 1_000, {"A": "," * 1_024})
    assert sum(map(len, many)) <= MAX_TEXT
    assert many[:2] == ["--rdzv-conf", "," * 1_024] and len(many) % 2 == 1, "words are not cut in the middle"
    assert len(expanded_words(["$A"] * 5_000, {"A": ""})) == MAX_WORDS
    assert expanded_words(["--nnodes", "$A:4"], {"A": "2"}) == ["--nnodes", "2:4"]


def test_a_variable_s_new_value_is_read() -> None:
    for value in ("2", "3"):
        command = bash("dlrover-run --node-unit=$U t.py") | {"env": [{"name": "U", "value": value}]}
        assert ignored_flags(with_container(container=command)) == [UNIT.replace("2", value)]
