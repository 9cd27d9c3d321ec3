"""Which torchrun commands of an injected Pod are ours, and which the image's own torchrun runs."""

import os
from collections.abc import Sequence

import pytest

from agent.flags import Flags
from agent.main import COMMANDS, Sdk, run_command

JOB = {"DLR_JOB_NAME": "digits", "PET_RDZV_BACKEND": "dlr"}


@pytest.mark.parametrize(
    ("arguments", "environ", "other"),
    [
        (["train.py"], JOB, False),
        (["--nnodes=1:4", "--nproc-per-node", "2", "train.py", "--standalone"], JOB, False),
        (["--standalone", "train.py"], JOB, True),
        (["--rdzv-backend=c10d", "train.py"], JOB, True),
        (["train.py", "--rdzv-backend=c10d"], JOB, False),
        (["train.py"], JOB | {"PET_RDZV_BACKEND": "c10d"}, True),
        (["--rdzv-backend=dlr", "train.py"], JOB | {"PET_RDZV_BACKEND": "c10d"}, False),
        (["train.py"], JOB | {"PET_STANDALONE": "1"}, True),
        (["train.py"], {}, True),
        (["evaluate.py"], JOB | {"DLR_PROGRESS_FILE": "/tmp/dlr/step.0"}, True),
    ],
)
def test_ours_is_what_asks_for_no_other_rendezvous_in_a_jobs_pod(
    arguments: list[str], environ: dict[str, str], other: bool
) -> None:
    assert Flags.read(arguments, environ).are_for_another_rendezvous(environ) is other


OF_THE_JOB = {"PET_NNODES": "2:2", "PET_NODE_RANK": "1", "PET_RDZV_ID": "digits"}


@pytest.mark.parametrize("name", ["run", "exec"])
@pytest.mark.parametrize(
    ("backend", "left"), [("dlr", {}), ("c10d", OF_THE_JOB | {"PET_RDZV_BACKEND": "c10d"})]
)
def test_a_torchrun_below_a_command_does_not_wait_for_the_jobs_other_workers(
    name: str, backend: str, left: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`torchrun --standalone` trains in a Pod of a job of two workers as it does anywhere."""
    for variable, value in (OF_THE_JOB | {"PET_RDZV_BACKEND": backend, "PET_NPROC_PER_NODE": "2"}).items():
        monkeypatch.setenv(variable, value)
    seen = dict[str, str]()

    def command(_words: Sequence[str], _sdk: Sdk) -> int:
        seen.update({key: value for key, value in os.environ.items() if key.startswith("PET_")})
        return 0

    monkeypatch.setitem(COMMANDS, name, command)
    assert run_command([name, "train.py"], Sdk()) == 0
    assert seen == left | {"PET_NPROC_PER_NODE": "2"}
