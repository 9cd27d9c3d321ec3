"""Five hangs, five crashes and an early end of any of four ranks: the right rank and line, wherever somebody
looks."""

from __future__ import annotations

import random
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from e2e import jobs
from e2e.api import Object
from e2e.cluster import Capability, Cluster
from e2e.embedded import EmbeddedCluster
from e2e.observation import Observation, Timeout

NODES = 4
SCRIPT = Path(__file__).parent.parent / "fixtures" / "guilty.py"
RANKS = 4
AT_ONCE = 4

HANGS = ("hang_in_python", "hang_in_c", "hang_in_loader", "hang_in_collective", "hang_in_checkpoint")
CRASHES = {
    "crash_in_python": "ValueError: this batch is empty",
    "crash_in_c": "the process was killed by SIGSEGV",
    "crash_in_loader": "ValueError: this sample cannot be read",
    "crash_in_collective": "invalid root rank: 4",
    "crash_in_checkpoint": "Parent directory /nosuch does not exist",
}
LEAVES = "leave_early"
WAYS = [*(way for pair in zip(HANGS, CRASHES, strict=True) for way in pair), LEAVES]
RESTART_COUNTS = (0, 3)

pytestmark = [
    pytest.mark.needs(Capability.STORAGE),
    pytest.mark.needs(Capability.NODE_PROCESSES),
]


@dataclass(frozen=True)
class Case:
    """Case of one seed: ways and counts in turn, rank and step by chance."""

    seed: int

    @property
    def name(self) -> str:
        return f"case-{self.seed}"

    @property
    def way(self) -> str:
        return WAYS[self.seed]

    @property
    def restart_count(self) -> int:
        return RESTART_COUNTS[self.seed % 2]

    @property
    def rank(self) -> int:
        return random.Random(self.seed).randrange(RANKS)

    @property
    def step(self) -> int:
        return random.Random(-self.seed).randrange(1, 25)

    @property
    def worker(self) -> str:
        return f"{self.name}-worker-{self.rank}"

    @property
    def message(self) -> str:
        """Return the expected content of the one line: for a hang, the script's line at which it waits."""
        if self.way == LEAVES:
            return f"rank {self.rank} finished early, at step {self.step - 1}; the others cannot go on"
        return CRASHES.get(self.way) or f"in {self.way}: "

    @property
    def expected_end(self) -> str:
        return "Failed" if self.restart_count == 0 else "Succeeded"

    def __str__(self) -> str:
        return f"{self.name} {self.way} rank={self.rank} step={self.step} restartCount={self.restart_count}"


def submit(case: Case, cluster: Cluster, namespace: str) -> None:
    folder = Path(cluster.storage(namespace).path) / case.name
    folder.mkdir()
    shutil.copy(SCRIPT, folder)
    manifest = jobs.scripted(
        cluster,
        case.name,
        RANKS,
        ["dlr", "run", str(folder / SCRIPT.name)],
        env={"FOLDER": str(folder), "WAY": case.way, "WHO": str(case.rank), "AT": str(case.step)},
        grace_seconds=2,
        worker={"restartCount": case.restart_count},
        elasticPolicy={**jobs.QUICK_REPORTS, "hangTimeoutSeconds": 30},
    )
    cluster.apply(manifest, namespace)


def wrong_about(case: Case, cluster: EmbeddedCluster, observation: Observation) -> list[str]:
    """Return the faults in everything that a user can read."""
    job, namespace = observation.job(case.name), observation.namespace
    described = cluster.kubectl("describe", "ej", case.name, "-n", namespace).stdout
    shown = cluster.dlr("job", "status", case.name, "-n", namespace)
    log = cluster.dlr("job", "logs", case.name, "--failed", "-n", namespace)
    blamed: Object = job["status"].get("lastFailure") or {}
    who = f"{case.worker} rank {case.rank}: "
    named = re.findall(rf"\b{case.name}-worker-\d+ rank \d+: .*", described)
    verdicts = [line for line in named if "follows from another's end" not in line]
    last = re.search(r"^  Last Failure:\n(.*?)^  [A-Z][a-zA-Z ]*:", described, re.MULTILINE | re.DOTALL)
    checks = {
        "its end": job["status"]["phase"] == case.expected_end,
        "lastFailure": (blamed.get("worker"), blamed.get("rank"), blamed.get("round"))
        == (case.worker, case.rank, 1),
        "lastFailure's line": case.message in str(blamed.get("message")).splitlines()[0],
        "it is counted once": sum(job["status"]["restarts"].values()) == 1,
        "describe: verdict": bool(verdicts)
        and all(who in line and (case.message in line or line.endswith("…")) for line in verdicts),
        "describe: lastFailure": last is not None and case.message in last[0] and case.worker in last[0],
        "status": case.worker in shown and _flat(case.message) in _flat(shown),
        "logs --failed: who": f"{case.worker}, rank {case.rank}" in log,
        "logs --failed: where": f"in {case.way}" in log or case.way == LEAVES,
        "logs --failed: what": _flat(case.message) in _flat(log),
    }
    return [what for what, right in checks.items() if not right]


def is_right_about(case: Case, cluster: EmbeddedCluster, observation: Observation) -> bool:
    return not wrong_about(case, cluster, observation)


def has_ended(observation: Observation, case: Case) -> bool:
    return jobs.phase(observation, case.name) in ("Failed", "Succeeded")


def _flat(text: str) -> str:
    """However its lines are wrapped."""
    return "".join(text.split())


@pytest.mark.parametrize("first", range(0, len(WAYS), AT_ONCE))
def test_rank_and_line_are_right_wherever_somebody_looks(
    cluster: Cluster, observation: Observation, first: int
) -> None:
    assert isinstance(cluster, EmbeddedCluster)
    cases = [Case(seed) for seed in range(first, min(first + AT_ONCE, len(WAYS)))]
    for case in cases:
        submit(case, cluster, observation.namespace)
    wrong = {}
    for case in cases:
        observation.wait_for(f"{case} to end", partial(has_ended, observation, case))
        with suppress(Timeout):  # Events follow what they tell
            right = partial(is_right_about, case, cluster, observation)
            observation.wait_for(f"{case} to be shown everywhere", right)
        found = wrong_about(case, cluster, observation)
        print(f"{case}: {', '.join(found) or 'right'}")
        if found:
            wrong[str(case)] = found
            print(cluster.kubectl("describe", "ej", case.name, "-n", observation.namespace).stdout)
            print(cluster.dlr("job", "logs", case.name, "--failed", "-n", observation.namespace))
    assert not wrong, wrong
