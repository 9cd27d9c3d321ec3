"""The timeline as a file: SVG with tooltips, PNG, and a page; and what is said when it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dlr.commands.job.timeline.drawing import SVG, draw_png, draw_svg, ticks, title
from dlr.commands.job.timeline.life import Life, life_of
from dlr.commands.job.timeline.page import page
from tests.cli.scripted import GROUP_PATH, ScriptedServer, job, listing, worker
from tests.cli.troubled import NOW, life, troubled_job, troubled_workers

JSON = dict[str, Any]
Dlr = Callable[..., Any]
JOB = f"GET {GROUP_PATH}/default/elasticjobs/digits"
EVENTS = "GET /api/v1/namespaces/default/events"
WORKERS = f"GET {GROUP_PATH}/default/elasticworkers"


@pytest.fixture
def troubled() -> Life:
    return life_of(troubled_job(), troubled_workers(), [], 0.81, NOW)


def texts_of(svg: str, tag: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter(f"{{{SVG}}}{tag}")]


def test_svg_names_states_rounds_workers_and_goodput(troubled: Life) -> None:
    svg = draw_svg(troubled)
    shown = texts_of(svg, "text")
    assert {"job", "worker-0 (node-0)", "worker-2 (node-3)", "round 1", "round 3"} <= set(shown)
    assert {"Training", "Recovering", "failure", "new Pod", "goodput 81.0%"} <= set(shown)
    tips = texts_of(svg, "title")
    assert "UserError, digits-worker-1, at 1m: ValueError: a <bad> batch" in tips
    assert "Training for 2m28s, 2m32s to 5m: Pod 2 on node-3, round 3" in tips
    assert "round 2, workers 0-2" in tips
    assert draw_svg(troubled) == svg


def test_texts_of_the_cluster_are_neither_formulas_nor_markup() -> None:
    hostile = [worker(0, nodeName="$\\frac{1}{0}$", history=[life(1, "<b>&\x1b", 0, 5)])]
    svg = draw_svg(life_of(troubled_job(), hostile, [], None, NOW))
    assert "worker-0 ($\\frac{1}{0}$)" in texts_of(svg, "text")
    assert any("Pod 1 on <b>&  is not up yet" in tip for tip in texts_of(svg, "title"))


def test_png_is_a_picture(troubled: Life) -> None:
    assert draw_png(troubled).startswith(b"\x89PNG\r\n\x1a\n")


def test_page_shows_the_picture_and_the_same_in_tables(troubled: Life) -> None:
    written = page(troubled, draw_svg(troubled))
    assert "<svg" in written
    assert "<td>ValueError: a &lt;bad&gt; batch</td>" in written
    assert "<td>worker 2 was lost: its node node-2 is gone</td>" in written
    for outside in ('src="http', "<script", "@import"):
        assert outside not in written


def test_title_says_what_is_not_shown() -> None:
    cut = troubled_job(history=troubled_job()["status"]["history"][-2:])
    assert title(life_of(cut, [], [], 0.5, NOW)) == (
        "default/digits · Running · 5m since 2026-01-01 00:00:00 UTC · goodput 50.0% "
        "· the first 2m are forgotten"
    )


def test_failures_before_the_known_history_are_not_drawn_beside_it() -> None:
    cut = troubled_job(history=troubled_job()["status"]["history"][-2:])
    tips = texts_of(draw_svg(life_of(cut, troubled_workers(), [], 0.5, NOW)), "title")
    assert any(tip.startswith("NodeLost") for tip in tips)
    assert not any(tip.startswith("UserError") for tip in tips)


@pytest.mark.parametrize("end", [0.5, 7, 59, 300, 3_601, 90_000, 700_000, 40_000_000])
@pytest.mark.parametrize("begin_share", [0.0, 0.7])
def test_ticks_are_few_round_and_within(end: float, begin_share: float) -> None:
    found = ticks(begin_share * end, end)
    assert len(found) <= 13
    assert all(begin_share * end <= at <= end for at in found)
    assert len({round(after - before) for before, after in pairwise(found)}) <= 1


class TestCommand:
    def test_writes_the_kind_of_file_that_its_name_says(
        self, server: ScriptedServer, dlr: Dlr, tmp_path: Path
    ) -> None:
        server.answers |= {JOB: troubled_job(), WORKERS: listing(*troubled_workers()), EVENTS: listing()}
        for ending, begins in ((".svg", b"<svg"), (".html", b"<!doctype html>"), (".PNG", b"\x89PNG")):
            file = tmp_path / f"timeline{ending}"
            done = dlr("job", "timeline", "digits", "-o", str(file))
            assert (done.exit_code, done.out) == (0, f"{file}\n")
            assert file.read_bytes().startswith(begins)

    def test_without_a_name_it_is_the_job_s(
        self, server: ScriptedServer, dlr: Dlr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        server.answers |= {JOB: troubled_job(), WORKERS: listing(), EVENTS: listing()}
        assert dlr("job", "timeline", "digits").out == "digits.svg\n"
        assert (tmp_path / "digits.svg").is_file()

    def test_what_cannot_be_drawn_or_written_is_one_sentence(
        self, server: ScriptedServer, dlr: Dlr, tmp_path: Path
    ) -> None:
        server.answers |= {JOB: [job(), troubled_job()], WORKERS: listing(), EVENTS: listing()}
        odd = dlr("job", "timeline", "digits", "-o", "x.pdf")
        assert (odd.exit_code, odd.err) == (
            1,
            "dlr: x.pdf: a timeline is a file that ends with .svg, .png, .html.\n",
        )
        assert server.requests == []
        early = dlr("job", "timeline", "digits", "-o", str(tmp_path / "x.svg"))
        assert early.exit_code == 1 and "'digits' has no history yet" in early.err
        nowhere = dlr("job", "timeline", "digits", "-o", str(tmp_path / "none" / "x.svg"))
        assert nowhere.exit_code == 1 and "x.svg cannot be written: No such file or directory." in nowhere.err
