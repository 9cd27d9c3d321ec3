"""Scripts that set variables for torch before they import it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agent.warm.preamble import must_start_cold, variables_for_torch
from tests.agent.conftest import Agents
from tests.agent.fake_cluster import FakeCluster


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch", {"OMP_NUM_THREADS": 2}),
        ("from os import environ\nenviron['TORCH_LOGS'] = level()\nimport torch", {"TORCH_LOGS": 2}),
        ("import os\nos.environ.setdefault('MKL_NUM_THREADS', '1')\nimport torch", {"MKL_NUM_THREADS": 2}),
        ("import os\nos.environ.update({'TORCHDYNAMO_DISABLE': '1'}, KMP_BLOCKTIME='0')",
         {"KMP_BLOCKTIME": 2, "TORCHDYNAMO_DISABLE": 2}),
        ("import os\nif True:\n  os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'x'\nfrom torch import nn",
         {"PYTORCH_CUDA_ALLOC_CONF": 3}),
        ("def main():\n  os.environ['OMP_NUM_THREADS'] = '4'\n  import torch.nn", {"OMP_NUM_THREADS": 2}),
        ("import os\nos.environ['TORCH_LOGS'] = '+dynamo'\nfrom transformers import Trainer", {"TORCH_LOGS": 2}),
        ("import os\nos.environ['OMP_NUM_THREADS'] = os.environ['MKL_NUM_THREADS'] = '1'\nimport torch",
         {"OMP_NUM_THREADS": 2, "MKL_NUM_THREADS": 2}),
        ("import os\nos.environ['OMP_NUM_THREADS']: str = '1'\nimport torch", {"OMP_NUM_THREADS": 2}),
        ("import os\nos.environ['TORCH_LOGS'] += ',dynamo'\nimport torch", {"TORCH_LOGS": 2}),
        # As without warm start, it is too late:
        ("import os, torch\nos.environ['OMP_NUM_THREADS'] = '4'", {}),
        # Nothing that importing torch reads:
        ("import os\nos.environ['MASTER_PORT'] = '1'\nos.environ['NCCL_DEBUG'] = 'INFO'\nimport torch", {}),
        ("import os\nprint(os.environ['OMP_NUM_THREADS'], os.environ.get('TORCH_LOGS'))\nimport torch", {}),
        # No change:
        ("import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch", {}),
        # No source:
        ("import os\nos.environ['TORCH_LOGS'] = = 1", {}),
    ],
)  # fmt: skip
def test_variables_that_come_too_late_for_a_fork(source: str, found: dict[str, int]) -> None:
    assert variables_for_torch(source, {"OMP_NUM_THREADS": "2"}) == found


SETS_THREADS = "import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch\n"


def test_modules_and_the_packages_above_them_are_read_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    inner = tmp_path / "trainer/inner"
    inner.mkdir(parents=True)
    (tmp_path / "trainer/__init__.py").write_text("import os\nos.environ['TORCH_LOGS'] = 'dynamo'\n1 / 0")
    (inner / "__main__.py").write_text(SETS_THREADS)
    (tmp_path / "plain.py").write_text("import torch")
    python = [sys.executable, "-u", "-m"]
    for module in ("trainer", "trainer.inner"):
        assert must_start_cold([*python, module], os.environ)
    (tmp_path / "trainer/__init__.py").write_text("")
    assert must_start_cold([*python, "trainer.inner"], {})
    for module in ("trainer", "plain", "no.such.module"):
        assert not must_start_cold([*python, module], {})
    assert (
        f"{inner}/__main__.py sets OMP_NUM_THREADS (line 2) above any `import torch` of its own"
        in caplog.text
    )


@pytest.mark.real
def test_script_that_sets_threads_gets_them_and_is_told_how_to_start_faster(
    cluster: FakeCluster, agents: Agents, tmp_path: Path
) -> None:
    script = agents.script(f"{SETS_THREADS}import dlr\ndlr.report(torch.get_num_threads())\n")
    agent = agents.start(0, script, warm=True)
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    cluster.wait_state({0: "Succeeded"}, 1)
    assert cluster.agent(0)["progress"]["step"] == 2
    cluster.publish(phase="Succeeded")
    assert agent.wait(300) == 0
    assert agents.log(0).count("sets OMP_NUM_THREADS (line 2)") == 1
