"""The page of a real job in a real browser: its curves, a kill and the recovery, and a loss of NaN, live."""

from __future__ import annotations

import asyncio

import pytest

from dlr.dashboard.server import Dashboard, serve
from dlr.kube.api import Api
from dlr.kube.connection import connect
from e2e.cluster import Capability, Cluster
from e2e.deaths import Mortals
from e2e.observation import Observation
from tests.dashboard.browser import Page, browser

pytestmark = [
    pytest.mark.needs(Capability.STORAGE),
]

HEADLINE = "(document.querySelector('#top h1')?.textContent || '')"
FINDING = "(document.querySelector('#findings li')?.textContent || '')"
CLASSES = "[...document.querySelectorAll('#failures td [data-state]')].map((cell) => cell.textContent).join()"
ROUND = "[...document.querySelectorAll('#top dd')].map((line) => line.textContent).join('; ')"


@pytest.mark.named
def test_a_kill_and_its_recovery_are_seen_live(cluster: Cluster, observation: Observation) -> None:
    mortals = Mortals(cluster, observation)
    mortals.submit(2)
    mortals.wait_until_training()
    api = Api(connect(cluster.environment()["KUBECONFIG"], None, observation.namespace))

    async def look() -> None:
        async with serve(Dashboard(api), 0) as url, browser() as page:
            await page.size(1280, 900)
            await page.open(url)
            await page.wait_for("document.querySelector('[data-row]')")
            await page.evaluate("document.querySelector('[data-row]').click()")
            await see_the_job_die_and_live(page)
            assert page.errors == []

    async def see_the_job_die_and_live(page: Page) -> None:
        await page.wait_for(f"{HEADLINE}.startsWith('Trains on 2 of 2 workers')")
        mortals.kill(1)
        await page.wait_for(f"{CLASSES} === 'Killed' && {ROUND}.includes('round 2 Formed')")
        await page.wait_for(
            "document.querySelectorAll('#steps canvas:not(.sparks *)').length === 3"
        )  # time, loss, lr
        mortals.tell(1, "nan")
        await page.wait_for(f"{FINDING}.startsWith('NaN or infinite loss')")
        await page.evaluate("document.querySelector('#worst button, #grid').click()")

    asyncio.run(look())
    mortals.finish()
