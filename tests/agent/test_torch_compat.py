from __future__ import annotations

import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed
import torch.distributed.device_mesh
import torch.distributed.elastic.rendezvous.registry as rdzv_registry
import torch.distributed.run as torchrun
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from agent.torch_compat import UnsupportedTorchError, process_groups
from agent.torch_compat.elastic import launched_processes, missing_seams, require_supported
from agent.torch_compat.training import note_first_group, uncompiled
from tests.agent.conftest import ROOT


@pytest.mark.parametrize("version", ["2.6.0", "2.6.0+cu124", "2.13.0a0+git1234", "3.0"])
def test_supported_versions(version: str) -> None:
    require_supported(version)


@pytest.mark.parametrize("version", ["2.5.1+cpu", "1.13.1", "unknown"])
def test_older_versions_are_refused_and_named(version: str) -> None:
    with pytest.raises(UnsupportedTorchError, match=r"needs torch 2\.6 or newer") as refused:
        require_supported(version)
    assert f"torch {version}," in str(refused.value)


def test_this_torch_has_all_that_is_built_on() -> None:
    assert missing_seams() == []


class NoRendezvousError(Exception):
    pass


@pytest.mark.parametrize("through", ["library", "torchrun"])
def test_torchs_launcher_says_how_many_processes_it_starts(
    monkeypatch: pytest.MonkeyPatch, through: str
) -> None:
    found: list[int] = []

    def create_handler(_: object) -> None:
        found.append(launched_processes())
        raise NoRendezvousError

    monkeypatch.setattr(rdzv_registry, "get_rendezvous_handler", create_handler)
    with pytest.raises(NoRendezvousError):
        if through == "library":
            elastic_launch(LaunchConfig(1, 1, nproc_per_node=3, rdzv_backend="dlr"), print)()
        else:
            torchrun.main(["--nproc-per-node=3", "--rdzv-backend=dlr", "train.py"])
    assert found == [3]
    assert launched_processes() == 1, "nobody launches anything"


def test_this_torch_has_what_training_processes_use() -> None:
    hook = uncompiled(lambda optimizer, arguments, keywords: None)
    assert hook(None, None, None) is None


@pytest.mark.real
@pytest.mark.parametrize(
    "program", ["import dlr.cli; dlr.cli.main()", "import dlr.pod, sys; sys.exit(dlr.pod.main(sys.argv[1:]))"]
)
def test_old_torch_is_told_in_one_sentence(program: str, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("__version__ = '2.5.1+cu121'")
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "train.py"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}:{ROOT}", "DLR_JOB_NAME": "job"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 69
    sentence = f"{sys.executable} has torch 2.5.1+cu121, and dlr needs torch 2.6 or newer: install that in this image\n"
    assert done.stderr.startswith("dlr: ") and done.stderr.endswith(sentence) and done.stderr.count("\n") == 1


def test_an_nccl_group_has_no_watchdog_and_other_groups_keep_their_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its constructor reads them (ProcessGroupNCCL.cpp); a group that the script makes has its own."""
    names = ["TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_CUDA_EVENT_CACHE"]
    seen: list[Any] = []

    class FakeNccl:
        def Options() -> SimpleNamespace:
            return SimpleNamespace(config=SimpleNamespace(blocking=True))

        def __init__(self, *arguments: Any) -> None:
            seen.extend([*map(os.environ.get, names), arguments[-1].config.blocking])
            self.eager_connect_single_device = seen.append

    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", FakeNccl, raising=False)
    monkeypatch.setenv(names[0], "0")
    monkeypatch.delenv(names[1], raising=False)
    device = torch.device("cuda:1")
    process_groups.nccl(torch.distributed.HashStore(), 0, 2, 60.0, device)
    assert seen == ["1", "1", False, device], "an abort reaches it while it connects"
    assert [os.environ.get(name) for name in names] == ["0", None]


def test_groups_on_gpus_refuse_a_torch_whose_graphs_wait_for_watchdogs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_groups.require_captures_without_watchdog()
    header = tmp_path / "include/ATen/cuda/CUDAGraph.h"
    header.parent.mkdir(parents=True)
    header.write_text("static std::atomic<int> pending_event_queries;")
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(UnsupportedTorchError, match=r"install torch 2\.8 or newer"):
        process_groups.require_captures_without_watchdog()


def test_process_group_is_noted_once_and_the_function_is_torchs_own_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init_process_group(backend: str, *, world_size: int) -> None:
        """torch's text."""
        called.append((backend, world_size))
        if world_size < 1:
            raise ValueError("no rank comes")

    called: list[tuple[str, int]] = []
    noted: list[tuple[float, float]] = []
    owners = [torch.distributed.distributed_c10d, torch.distributed, torch.distributed.device_mesh]
    for owner in owners:
        monkeypatch.setattr(owner, "init_process_group", init_process_group)
    note_first_group(count(1.0).__next__, lambda began, ended: noted.append((began, ended)))
    scripts = torch.distributed.init_process_group
    assert scripts is not init_process_group and scripts.__doc__ == "torch's text."
    with pytest.raises(ValueError, match="no rank comes"):
        scripts("gloo", world_size=0)
    assert not noted, "there is no group yet"
    scripts("gloo", world_size=2)
    assert all(owner.init_process_group is init_process_group for owner in owners)
    scripts("nccl", world_size=4)
    assert called == [("gloo", 0), ("gloo", 2), ("nccl", 4)]
    assert noted == [(2, 3)], "of the one that came to a group"


def test_function_that_a_library_has_put_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed.distributed_c10d, "init_process_group", lambda: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", own := lambda: "the library's")
    note_first_group(count(1.0).__next__, lambda *_: None)
    assert torch.distributed.init_process_group is own
    torch.distributed.distributed_c10d.init_process_group()
    assert torch.distributed.init_process_group is own
