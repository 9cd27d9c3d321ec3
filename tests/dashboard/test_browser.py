"""The page in a real browser: by keys from all jobs to one, live, in the dark, on a phone."""

from __future__ import annotations

import pytest

from crds import names
from dlr.dashboard import feed as feeds
from tests.cli.scripted import listing, pod, refusal
from tests.cli.troubled import at, episode, troubled_job, troubled_workers
from tests.dashboard.browser import Page, browser
from tests.dashboard.conftest import JOB, WITHIN, Served
from tests.dashboard.test_pages import with_series, with_stacks, with_usage

pytestmark = [pytest.mark.real, pytest.mark.named]

WORKERS = f"GET {WITHIN}/elasticworkers"
HEADLINE = "document.querySelector('#top h1')?.textContent"
FINDING = "document.querySelector('#findings li')?.textContent"
TROUBLE = "document.getElementById('trouble')"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(autouse=True)
def calm(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer updates than other tests have: each is drawn."""
    monkeypatch.setattr(feeds, "INTERVAL_SECONDS", 0.3)


async def to_the_job(page: Page, served: Served) -> None:
    await page.open(served.url)
    await page.wait_for("document.querySelector('[data-row]')")
    await page.press("j")
    await page.press("Enter")
    await page.wait_for(f"({FINDING} || '').startsWith('No rank has made a step for')")


async def test_page_shows_a_job_and_what_becomes_of_it(served: Served) -> None:
    name = "digits-worker-2-2"
    served.api.answers[f"GET /api/v1/namespaces/default/pods/{name}"] = pod(name)
    log = "2026-01-01T00:00:01Z <img src=x onerror=alert(1)>\n"
    served.api.answers[f"GET /api/v1/namespaces/default/pods/{name}/log"] = log
    async with browser() as page:
        await page.size(1280, 900)
        await to_the_job(page, served)
        assert await page.evaluate("document.querySelectorAll('.timeline .cross').length") == 2
        assert await page.evaluate("document.querySelectorAll('#failures tbody tr').length") == 2
        await page.evaluate("followLog(2)")
        await page.wait_for("document.getElementById('log-lines').textContent.startsWith('<img')")

        hung = {
            "worker": "digits-worker-0",
            "rank": 0,
            "exitClass": "Hang",
            "time": at(310),
            "message": "no step",
            "round": 3,
        }
        history = [
            *troubled_job()["status"]["history"],
            episode("Recovering", 310, 3, "0-2", "worker 0 hangs"),
        ]
        served.api.answers[JOB] = troubled_job(phase="Restarting", lastFailure=hung, history=history)
        await page.wait_for(
            "[...document.querySelectorAll('#failures td')].some((cell) => cell.textContent === 'Hang')"
        )

        served.api.answers["GET /api/v1/namespaces/default"] = {"metadata": {"name": "default"}}
        served.api.answers[JOB] = refusal(404, "NotFound", "no", name="digits")
        await page.wait_for(f"{TROUBLE}.textContent.includes('There is no ElasticJob')")
        assert not await page.evaluate(f"{TROUBLE}.hidden")

        await page.press("u")
        await page.wait_for("document.querySelector('[data-row]')")
        assert page.errors == []


async def test_page_fits_a_phone_and_is_dark_in_the_dark(served: Served) -> None:
    async with browser() as page:
        await page.size(390, 844, dark=True)
        await to_the_job(page, served)
        assert await page.evaluate(OVERFLOW) == 0
        assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
        await page.press("u")
        await page.wait_for("document.querySelector('[data-row]')")
        assert await page.evaluate(OVERFLOW) == 0
        assert page.errors == []


async def test_ranks_are_found_and_opened_by_keys_alone(served: Served) -> None:
    async with browser() as page:
        await page.size(1280, 900)
        await to_the_job(page, served)
        await page.evaluate("document.getElementById('grid').focus()")
        for key, told in (("ArrowRight", "rank 0 "), ("ArrowRight", "rank 1 "), ("ArrowLeft", "rank 0 ")):
            await page.press(key)
            await page.wait_for(f"document.getElementById('tip').textContent.startsWith('{told}')")
        await page.press("Enter")
        await page.wait_for("document.getElementById('rank').value === '0'")
        assert page.errors == []


async def test_an_empty_namespace_says_what_to_run(served: Served) -> None:
    served.api.answers[f"GET {WITHIN}/elasticjobs"] = listing()
    async with browser() as page:
        await page.open(served.url)
        await page.wait_for("document.getElementById('fleet-title')?.textContent === 'No jobs'")
        assert "dlr job submit -f" in await page.evaluate("document.getElementById('fleet').textContent")
        assert page.errors == []


async def test_a_state_shows_its_jobs_alone(served: Served) -> None:
    waits = troubled_job(phase="Suspended", goodput=None)
    waits["metadata"] |= {"name": "waits", "uid": "uid-waits"}
    served.api.answers[f"GET {WITHIN}/elasticjobs"] = listing(troubled_job(), waits)
    async with browser() as page:
        await page.open(served.url)
        await page.wait_for("document.querySelectorAll('[data-row]').length === 2")
        await page.evaluate("document.querySelector('#states [data-key=Suspended]').click()")
        await page.wait_for("document.querySelectorAll('[data-row]').length === 1")
        assert await page.evaluate("document.querySelector('[data-row]').textContent") == "waits"
        assert page.errors == []


async def test_stacks_that_were_asked_for_come_to_the_page(served: Served) -> None:
    async with browser() as page:
        await page.size(1280, 900)
        await to_the_job(page, served)
        said = "document.querySelector('#stacks').textContent"
        await page.wait_for(f"{said}.includes('dlr job stacks')")
        asked = f"{at(240)}-0a1b2c3d"
        made = troubled_job()
        made["metadata"]["annotations"] = {names.ANNOTATION_STACKS: asked}
        served.api.answers[JOB] = made
        served.api.answers[WORKERS] = listing(*with_stacks(troubled_workers(), asked, "read (loader.py:31)"))
        await page.wait_for(f"{said}.includes('3 processes at ')")
        assert await page.evaluate(f"{said}.includes('read (loader.py:31)')")
        assert page.errors == []


async def test_curves_of_step_time_and_loss_are_drawn_and_follow_what_is_told(served: Served) -> None:
    workers = with_series(troubled_workers(), 0, 20)
    served.api.answers[WORKERS] = listing(*workers)
    async with browser() as page:
        await page.size(1280, 900)
        await to_the_job(page, served)
        titles = "[...document.querySelectorAll('#steps figcaption')].map((each) => each.firstChild.textContent).join()"
        await page.wait_for("document.querySelectorAll('#steps canvas').length === 3")
        assert await page.evaluate(titles) == "Step time,loss,lr"
        drawn = "document.querySelector('#chart-0 canvas').toDataURL()"
        await page.evaluate(f"window.before = {drawn}")
        workers[0]["status"]["agent"]["series"]["latest"]["numbers"]["loss"] = 9.0
        served.api.answers[WORKERS] = listing(*workers)
        await page.wait_for(f"{drawn} !== window.before")
        assert page.errors == []


async def test_usage_changes_and_odd_ranks_are_shown_as_text(served: Served) -> None:
    evil = "<img src=x onerror=alert(1)>"
    history = [*troubled_job()["status"]["history"], episode("Suspended", 200, 3, "", evil)]
    served.api.answers[JOB] = troubled_job(history=[*history, episode("Training", 240, 4, "0-2")])
    workers = with_usage(troubled_workers())
    workers[2]["status"]["nodeName"] = evil
    workers[2]["status"]["agent"]["progress"]["secondsPerStep"] = 0.84
    served.api.answers[WORKERS] = listing(*workers)
    async with browser() as page:
        await page.size(390, 844)
        await to_the_job(page, served)
        await page.wait_for("document.querySelectorAll('#steps .sparks canvas').length === 2")
        assert (await page.evaluate("document.getElementById('usage').textContent")).startswith("Curves of")
        changes = await page.evaluate("document.querySelector('#changes tbody').innerText")
        assert evil in changes and "Suspended" in changes
        assert f"Slow rank 2 on {evil}" in await page.evaluate("document.querySelector('.odd').innerText")
        assert "9 cores" in await page.evaluate("document.getElementById('usage').textContent")
        assert await page.evaluate("document.querySelectorAll('img').length") == 0
        assert await page.evaluate(OVERFLOW) == 0
        assert page.errors == []
