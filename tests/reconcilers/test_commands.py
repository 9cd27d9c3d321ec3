"""Which launchers stand in a container's command, and with which flags."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.dlrover import LAUNCHER, ignored
from reconcilers.observed.command import MAX_TEXT, command_words, launches_in

CHECK = "--network-check: set the job's spec.nodeCheck.enabled: true"
UNIT = "--node-unit=2: set the job's spec.elasticPolicy.nodeUnit: 2"
CHAOS = """\
(bash start_chaos.sh user-case &)
&& dlrover-run --network-check \\
  --nnodes=3:$NODE_NUM --rdzv_conf lastcall_timeout=90 \\
  examples/train.py --node-unit=8
"""


def bash(text: str) -> dict[str, Any]:
    return {"command": ["/bin/bash", "-c", text]}


@pytest.mark.parametrize(
    ("container", "found"),
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
        (bash("bash -c 'dlrover-run --network-check train.py'"), [CHECK]),
        (bash("dlrover-run --network-check 'train.py"), [CHECK]),
        (bash("dlrover-run --help; other --network-check"), []),
        (bash("pip install dlrover-run\npython train.py --network-check"), []),
        (bash("# dlrover-run --network-check t.py\ntorchrun t.py"), []),
        (bash("torchrun --network-check t.py"), []),
        (bash("my-dlrover-run --network-check t.py"), []),
        (bash("python -W ignore -u train.py; dlrover-run --network-check a.py"), [CHECK]),
        (bash("python -c 'dlrover-run --network-check x'"), [CHECK]),
        (bash("python -W; python -m dlrover.trainer.torch.elastic_run --node-unit=2 a.py"), [UNIT]),
        ({}, []),
    ],
)
def test_the_flags_of_a_launcher_in_a_command(container: dict[str, Any], found: list[str]) -> None:
    launches = (each for each in launches_in(command_words(container)) if each.name == LAUNCHER)
    flags = next((each.flags for each in launches), [])
    assert [each.advice for each in ignored(flags)] == found


@given(st.lists(st.text(alphabet="d-=$(){}'\"`\\\n #;&|x1 ", max_size=40), max_size=4))
def test_no_command_is_too_odd_to_be_read(words: list[str]) -> None:
    text = "".join(word.replace("d", "dlrover-run ").replace("x", "--network-check ") for word in words)
    for command in ([text], ["sh", "-c", text], ["dlrover-run", *words], [text * 9_000]):
        found = command_words({"command": command})
        assert sum(map(len, found)) <= MAX_TEXT
        for launch in launches_in(found):
            assert launch.flags is not None


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
