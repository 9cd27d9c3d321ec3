"""Which commands are certain to start an agent, so that exit code 0 without its report is no success."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.names import ANNOTATION_LAUNCHER
from reconcilers.observed.command import launcher_of
from reconcilers.observed.options import AgentSource
from reconcilers.worker.injection import inject_agent
from tests.counting import growth

TAIL = "torchrun --bogus train.py"


def of_text(text: str) -> str:
    return launcher_of({"command": ["bash", "-c", text]})


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        (["torchrun", "train.py"], "torchrun"),
        (["/opt/conda/bin/torchrun", "--nnodes", "2", "train.py"], "torchrun"),
        (["python", "-u", "-m", "torch.distributed.run", "train.py"], "torchrun"),
        (["dlrover-run", "--network-check", "train.py"], "dlrover-run"),
        (["dlr", "run", "train.py"], "dlr"),
        (["dlr", "exec", "--", "python", "ps.py"], "dlr"),
        (["dlr", "check-worker"], ""),
        (["python", "train.py"], ""),
        (["bash", "train.sh", "-c", TAIL], ""),
        ([], ""),
        (["torchrun", "--standalone", "train.py"], ""),
        (["torchrun", "--rdzv-backend=c10d", "train.py"], ""),
        (["torchrun", "--rdzv_backend", "dlr", "train.py"], "torchrun"),
        (["torchrun", "--help"], ""),
    ],
)
def test_a_command_of_words_is_certain_to_start_the_launcher_that_it_names(
    command: list[str], launcher: str
) -> None:
    assert launcher_of({"command": command}) == launcher
    assert launcher_of({"command": command[:1], "args": command[1:]}) == launcher


@pytest.mark.parametrize(
    "text",
    [
        f"{TAIL} | tee log",
        f"{TAIL} 2>&1 | tee /logs/$NODE_RANK.log",
        f"trap 'echo leaving; exit 0' TERM; {TAIL} & wait",
        f"set -e\nsource activate x && cd /work\n# test\n{TAIL}; echo done",
        f"OMP_NUM_THREADS=1 A=$(cat a) nohup {TAIL}",
        f"pip install -r requirements.txt && {TAIL} || true",
        "python -m torch.distributed.run train.py | tee log",
        "torchrun \\\n  --nnodes=1:2 \\\n  train.py | tee log",
    ],
)
def test_a_shells_text_that_starts_a_launcher_whatever_else_happens_is_certain(text: str) -> None:
    assert of_text(text) == "torchrun"
    assert launcher_of({"args": ["/bin/sh", "-ec", text]}) == "torchrun"


@pytest.mark.parametrize(
    "text",
    [
        f"test -f done && exit 0; {TAIL}",
        f"[ -f done ] || {TAIL}",
        f"if [ -z $SKIP ]; then {TAIL}; fi",
        f"for i in 1 2 3; do {TAIL} && break; done",
        "echo torchrun train.py",
        "echo 'a; torchrun train.py'",
        "# torchrun train.py\npython train.py",
        "python train.py > torchrun",
        f"export PET_STANDALONE=1; {TAIL}",
        "torchrun --standalone train.py | tee log",
        f"cat <<EOF\n{TAIL}\nEOF",
        f"{TAIL} 'without an end",
        "./train.sh",
        f"timeout 3h {TAIL}",
        f"train() {{ {TAIL}; }}; [ -f done ] || train",
        "x" * 20_000 + f"; {TAIL}",
    ],
)
def test_a_shells_text_that_may_do_without_a_launcher_is_not_certain(text: str) -> None:
    assert of_text(text) == ""


@pytest.mark.parametrize(
    ("variable", "launcher"),
    [
        ({"name": "PET_RDZV_BACKEND", "value": "dlr"}, "torchrun"),
        ({"name": "PET_RDZV_BACKEND", "value": "c10d"}, ""),
        ({"name": "PET_RDZV_BACKEND", "valueFrom": {}}, ""),
        ({"name": "PET_STANDALONE", "value": "1"}, ""),
    ],
)
def test_a_rendezvous_of_the_users_is_the_images_own_torchruns_business(
    variable: dict[str, Any], launcher: str
) -> None:
    assert launcher_of({"command": ["torchrun", "train.py"], "env": [variable]}) == launcher


def test_a_pod_says_which_launcher_its_agent_comes_from() -> None:
    for command, launcher in ((["bash", "-c", f"{TAIL} | tee log"], "torchrun"), (["python", "x.py"], None)):
        pod: dict[str, Any] = {"metadata": {}, "spec": {"containers": [{"name": "main", "command": command}]}}
        inject_agent(pod, AgentSource())
        assert pod["metadata"]["annotations"].get(ANNOTATION_LAUNCHER) == launcher


@given(st.text(alphabet="torchrun dlr;&|()<>'\"\\\n$`#[{=", max_size=200))
def test_no_text_is_too_odd_to_read(text: str) -> None:
    assert of_text(text) in ("", "torchrun", "dlr", "dlrover-run")


@pytest.mark.parametrize("piece", ["a", "a ", "'", "a=", "{ ", "$(", "&&", "#", "\\\n", "-c ", "a;", "<"])
def test_a_long_text_is_read_in_no_time(piece: str) -> None:
    assert growth(lambda length: of_text((piece * length)[:length]), 1_024, 16_384) < 64, "squared is 256"
