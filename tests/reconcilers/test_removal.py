"""Each optional feature is a folder that can be deleted, with its lines in `setup.py`; the rest works."""

from __future__ import annotations

import pytest

from tests.reconcilers.without import life_without

OPTIONAL = ("roles", "scaleplan")


@pytest.mark.parametrize("feature", OPTIONAL)
async def test_a_job_trains_to_its_end_without(feature: str) -> None:
    with life_without(f"reconcilers.{feature}") as life:
        api = life.beginning()
        life.submit(api)
        phases = []
        for script in (life.Script(), life.Script(process_failures={1: 1}), life.Script(done=True)):
            await life.Run(api, script).settle()
            (job,) = api.list(life.ELASTICJOBS)
            phases.append((job["status"]["phase"], job["status"]["rendezvous"]["round"]))
    assert phases == [("Running", 1), ("Running", 2), ("Succeeded", 2)]
