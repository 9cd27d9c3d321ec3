"""Which torchrun commands of an injected Pod are ours, and which the image's own torchrun runs."""

import pytest

from agent.flags import Flags, without_our_rendezvous

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


def test_another_rendezvous_does_not_wait_for_the_jobs_other_workers() -> None:
    """`torchrun --standalone` trains in a Pod of a job of two workers as it does anywhere."""
    ours = {"PET_NNODES": "2:2", "PET_NODE_RANK": "1", "PET_RDZV_ID": "digits", "PET_NPROC_PER_NODE": "2"}
    assert without_our_rendezvous({"PATH": "/bin", **ours, **JOB}) == {
        "PATH": "/bin",
        "PET_NPROC_PER_NODE": "2",
        "DLR_JOB_NAME": "digits",
    }
    theirs = {**ours, "PET_RDZV_BACKEND": "c10d"}
    assert without_our_rendezvous(theirs) == theirs
