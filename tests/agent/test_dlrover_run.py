"""`dlrover-run`: DLRover's flags go, torchrun's stay, and the script's own are nobody's business."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import dlrover_run
from agent.arguments import launch_parser
from agent.dlrover_run import translated
from crds.dlrover import FLAGS, SWITCHES


def never() -> bool:
    return False


# --- Examples ---------------------------------------------------------------------------------------------

DLROVERS_EXAMPLE = (
    "--network-check --exclude-straggler --nnodes=3:4 --nproc_per_node=2 --max_restarts=3 "
    "--rdzv_conf pend_timeout=600 examples/cnn_train.py --num_epochs 5 --network-check"
)


def test_dlrovers_example() -> None:
    command, not_obeyed = translated(DLROVERS_EXAMPLE.split(), never)
    script = ["examples/cnn_train.py", "--num_epochs", "5", "--network-check"]
    settings = ["--max_restarts=3", "--rdzv_conf", "pend_timeout=600"]
    assert command == ["--nnodes=3:4", "--nproc_per_node=2", *settings, *script]
    assert not_obeyed == [
        "--network-check: set the job's spec.nodeCheck.enabled: true",
        "--exclude-straggler: set the job's spec.nodeCheck.excludeStragglers: true",
        "--rdzv-conf pend_timeout=600: a worker waits until the job's "
        "spec.runPolicy.activeDeadlineSeconds are over",
    ]


@pytest.mark.parametrize(
    ("given_words", "command", "advice"),
    [
        (
            "--node_unit 4 train.py",
            "train.py",
            ["--node-unit=4: set the job's spec.elasticPolicy.nodeUnit: 4"],
        ),
        ("--precheck 0 t.py", "t.py", []),
        ("--precheck=2 t.py", "t.py", ["--precheck=2: set the job's spec.nodeCheck.enabled: true"]),
        ("--accelerator ascend-npu --nnodes 2 t.py", "--nnodes 2 t.py", []),
        ("--ucp_device_type gpu --auto_tunning t.py", "t.py", ["--ucp-device-type", "--auto-tunning:"]),
        ("--standalone --nproc-per-node=2 t.py", "--nproc-per-node=2 t.py", []),
        (
            "--rdzv-conf join_timeout=600,lastcall_timeout=60 t.py",
            "--rdzv-conf join_timeout=600,lastcall_timeout=60 t.py",
            ["--rdzv-conf lastcall_timeout=60: set the job's spec.elasticPolicy.lastCallSeconds: 60"],
        ),
        # what DLRover's own parser refuses is no reason for an exit here either
        ("--network-check=True t.py", "t.py", ["--network-check: set"]),
        ("--node-unit --nnodes=2 t.py", "--nnodes=2 t.py", ["--node-unit: set"]),
    ],
)
def test_flags(given_words: str, command: str, advice: list[str]) -> None:
    found, not_obeyed = translated(given_words.split(), never)
    assert found == command.split()
    assert len(not_obeyed) == len(advice)
    assert all(said.startswith(start) for said, start in zip(not_obeyed, advice, strict=True))


def test_numa_affinity_becomes_torchs_numa_binding_where_that_works() -> None:
    words = ["--numa-affinity", "--nnodes=2", "train.py", "--numa-affinity"]
    assert translated(words, lambda: True) == (["--nnodes=2", dlrover_run.NUMA_BINDING, *words[2:]], [])
    assert translated(words, never) == (words[1:], [dlrover_run.NO_NUMA_BINDING])
    own = ["--numa_affinity", "--numa-binding=exclusive", "train.py"]
    assert translated(own, lambda: True) == (own[1:], [])


def test_it_says_what_is_not_obeyed_and_scripts_find_its_clients_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launched: list[list[str]] = []
    monkeypatch.setattr(dlrover_run, "launch", lambda argv, _: launched.append(argv) or 0)
    monkeypatch.setattr("sys.path", ["/started/from", "/installed"])
    monkeypatch.setenv("PYTHONPATH", "/own")
    assert dlrover_run.main(["--network-check", "train.py"], clients=("/clients",)) == 0
    assert launched == [["train.py"]]
    assert capsys.readouterr().err == (
        "dlrover-run: not obeyed: --network-check: set the job's spec.nodeCheck.enabled: true\n"
    )
    assert sys.path == ["/started/from", "/clients", "/installed"]
    assert os.environ["PYTHONPATH"] == "/clients:/own"


# --- The table and torch's parser -------------------------------------------------------------------------


def test_every_flag_without_a_value_is_known() -> None:
    """Of another, the script would be taken for the value."""
    switches = {
        name.lstrip("-").replace("_", "-")
        for action in launch_parser()._actions
        for name in action.option_strings
        if action.nargs == 0
    }
    assert switches <= SWITCHES
    assert switches | {flag.name for flag in FLAGS.values() if not flag.takes_value} >= SWITCHES - {
        "virtual-local-rank"  # newer torch
    }


# --- Properties -------------------------------------------------------------------------------------------

words = st.text(alphabet="ab1.-_= /:", max_size=8)
anything = st.one_of(words, st.sampled_from([f"--{name}" for name in FLAGS]), st.just("train.py"))


@st.composite
def spelling(draw: st.DrawFn, name: str, value: str | None) -> list[str]:
    flag = f"--{draw(st.sampled_from([name, name.replace('-', '_')]))}"
    if value is None:
        return [flag]
    return [f"{flag}={value}"] if draw(st.booleans()) else [flag, value]


TORCHRUNS = {
    "nnodes": "1:4",
    "nproc-per-node": "2",
    "max-restarts": "3",
    "rdzv-conf": "join_timeout=60,timeout=5",
    "rdzv-endpoint": "host:29500",
    "rdzv-id": "mine",
    "role": "trainer",
    "log-dir": "/tmp/logs.py",
    "tee": "3",
    "monitor-interval": "0.5",
    "local-addr": "10.0.0.1",
    "no-python": None,
    "run-path": None,
}
DLROVERS = {flag.name: "2" if flag.takes_value else None for flag in FLAGS.values()}


@given(
    st.lists(st.sampled_from([*TORCHRUNS.items(), *DLROVERS.items()])),
    st.sampled_from([["train.py"], ["-m", "package.train"], ["--", "-odd.py"], ["./run"], ["-"]]),
    st.lists(anything),
    st.data(),
)
def test_the_scripts_arguments_stay_and_no_flag_of_torchruns_is_lost(
    flags: list[tuple[str, str | None]], script: list[str], arguments: list[str], data: st.DataObject
) -> None:
    said = [(name, data.draw(spelling(name, value))) for name, value in flags]
    front = [word for _, spelt in said for word in spelt]
    command, _ = translated([*front, *script, *arguments], never)
    kept = [word for name, spelt in said if name in TORCHRUNS for word in spelt]
    assert command == [*kept, *script, *arguments]
