"""Without the folder of shard sets, and its lines in setup.py, a job trains to its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER, LINE = "reconcilers.shards", "shards"
PLAYED = f"""
import asyncio, sys, types
from pathlib import Path

class Gone:
    def find_spec(self, name, *_):
        if (name + ".").startswith("{FOLDER}."):
            raise ImportError(name)

sys.meta_path.insert(0, Gone())
source = Path("reconcilers/setup.py").read_text()
kept = [line for line in source.splitlines() if "{LINE}" not in line]
assert len(kept) == len(source.splitlines()) - 2
setup = types.ModuleType("reconcilers.setup")
exec(compile("\\n".join(kept), "reconcilers/setup.py", "exec"), setup.__dict__)
sys.modules["reconcilers.setup"] = setup

from reconcilers.runtime.kinds import ELASTICJOBS
from tests.reconcilers.cluster_model import Script
from tests.reconcilers.life import JOB, Run, beginning, submit

api = beginning()
submit(api)
asyncio.run(Run(api).settle())
print(api.get(ELASTICJOBS, JOB)["status"]["phase"])
asyncio.run(Run(api, Script(done=True)).settle())
print(api.get(ELASTICJOBS, JOB)["status"]["phase"])
"""


@pytest.mark.real
def test_a_first_job_is_played_to_its_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PLAYED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["Running", "Succeeded"], done.stderr
