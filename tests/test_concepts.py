"""docs/concepts.md is short, and its walk of one ElasticJob is the one that the code takes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from tests.reconcilers.api import Api
from tests.reconcilers.cluster_model import add_nodes
from tests.reconcilers.life import Run, submit

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/concepts.md").read_text()
WALK = re.findall(r"^\d+\. `(\S+\.py)`", PAGE, re.MULTILINE)
ENTRIES = {
    "controller/watch/intake.py": "tell",
    "controller/queue/controller.py": "requests",
    "reconcilers/job/reconciler.py": "reconcile",
    "reconcilers/job/seen.py": "of",
    "reconcilers/job/plan.py": "plan_job",
    "reconcilers/failure/policy.py": "assess",
    "reconcilers/world/decision.py": "decide",
    "reconcilers/job/status.py": "going_on",
    "reconcilers/conditions/table.py": "judged",
}
"""The function of each file by which the walk comes in. `controller/queue/loop.py` is not in it: the scheduler of
`tests.reconcilers.process` stands in for it."""


def test_concepts_have_a_thousand_words_of_prose_and_a_diagram_for_each_event() -> None:
    prose = re.sub(r"```mermaid.*?```", "", PAGE, flags=re.DOTALL)
    assert len(prose.split()) <= 1_000
    assert PAGE.count("sequenceDiagram") == 5


def test_the_walk_has_ten_files_at_most_and_names_all_that_are_traced() -> None:
    assert len(WALK) <= 10
    assert [file for file in WALK if file != "controller/queue/loop.py"] == list(ENTRIES)


async def test_a_look_at_a_job_passes_the_files_of_the_walk_in_their_order() -> None:
    looks: list[list[str]] = []

    def trace(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
        if event != "call" or ENTRIES.get(file) != frame.f_code.co_name:
            return
        if file == WALK[0] or not looks:
            looks.append([])
        if file not in looks[-1]:
            looks[-1].append(file)

    api = Api()
    add_nodes(api, 3)
    submit(api)
    sys.setprofile(trace)
    try:
        await Run(api).settle()
    finally:
        sys.setprofile(None)
    assert list(ENTRIES) in looks
