"""No edit of an ElasticJob's status reaches an agent: its watch brings nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.facts.world import JobView
from agent.kube.api import ApiClient
from agent.kube.watcher import Watcher
from controller.kubeconfig import load_connection
from crds.names import ANNOTATION_STACKS
from reconcilers.runtime.kinds import ELASTICJOBS
from tests.reconcilers.cluster import NAMESPACE, ApiServer, Hollow

pytestmark = pytest.mark.real

EDITS = 50


class CountingWatcher(Watcher[JobView]):
    """An agent's watcher that counts all events of its watch, those that change nothing too."""

    events = 0

    def feed(self, event: Mapping[str, Any]) -> None:
        self.events += event["type"] != "BOOKMARK"
        super().feed(event)


async def test_edits_of_a_jobs_status_bring_nothing_to_an_agent(
    hollow: Hollow, server: ApiServer, tmp_path: Path
) -> None:
    await hollow.train("quiet")
    connection = load_connection(server.kubeconfig)
    api = ApiClient(connection)
    watcher = CountingWatcher(
        api, "elasticworlds", NAMESPACE, "quiet", parse=JobView.parse, missing=JobView()
    )
    watcher.start()

    async def has_trained() -> bool:
        view = watcher.view()
        return view is not None and view.phase == "Running"

    async def is_asked() -> bool:
        view = watcher.view()
        return view is not None and view.asks_for_stacks == "now"

    await hollow.until("the world", has_trained)
    before = watcher.events
    for number in range(EDITS):
        edit = {
            "message": f"edit {number}",
            "conditions": [],
            "replicaStatuses": {"worker": {"active": number}},
            "rendezvous": {"reason": f"edit {number}"},
            "usage": {"round": number},
        }
        await hollow.client.patch(ELASTICJOBS, "quiet", {"status": edit}, NAMESPACE, subresource="status")
    # What comes next on the watch shows that nothing of the above is still on its way.
    asked = {"metadata": {"annotations": {ANNOTATION_STACKS: "now"}}}
    await hollow.client.patch(ELASTICJOBS, "quiet", asked, NAMESPACE)
    await hollow.until("the question", is_asked)
    assert watcher.events == before + 1
    watcher.stop()
