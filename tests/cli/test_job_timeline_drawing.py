"""The timeline as a file: SVG with tooltips, PNG, and a page; and what is said when it cannot be."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlr.commands.job.timeline.drawing import DESK, PHONE, SVG, Sheet, draw_png, draw_svg, ticks
from dlr.commands.job.timeline.labels import Side, sides
from dlr.commands.job.timeline.page import page
from dlr.job.timeline.life import Life, life_of, title
from dlr.job.timeline.verdict import verdict
from tests.cli.scripted import GROUP_PATH, ScriptedServer, job, listing, worker
from tests.cli.troubled import NOW, life, troubled_job, troubled_workers

JSON = dict[str, Any]
Dlr = Callable[..., Any]
JOB = f"GET {GROUP_PATH}/default/elasticjobs/digits"
EVENTS = "GET /api/v1/namespaces/default/events"
WORKERS = f"GET {GROUP_PATH}/default/elasticworkers"


@pytest.fixture
def troubled() -> Life:
    return life_of(troubled_job(), troubled_workers(), 0.81, NOW)


def texts_of(svg: str, tag: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter(f"{{{SVG}}}{tag}")]


def test_svg_names_states_rounds_workers_and_goodput(troubled: Life) -> None:
    svg = draw_svg(troubled)
    shown = texts_of(svg, "text")
    assert {"job", "worker-0 (node-0)", "worker-2 (node-3)", "round 1", "round 3"} <= set(shown)
    assert {"Training", "Recovering", "failure", "new Pod", "goodput 81.0%"} <= set(shown)
    tips = texts_of(svg, "title")
    assert "UserError, digits-worker-1, at 1m (00:01:00 UTC): ValueError: a <bad> batch" in tips
    assert "Training for 2m28s, 2m32s to 5m: Pod 2 on node-3, round 3" in tips
    assert "round 2, workers 0-2" in tips
    assert draw_svg(troubled) == svg


@pytest.mark.parametrize("sheet", [DESK, PHONE])
def test_verdict_stands_above_the_drawing_whole(troubled: Life, sheet: Sheet) -> None:
    assert verdict(troubled) in " ".join(texts_of(draw_svg(troubled, sheet), "text"))


def test_texts_of_the_cluster_are_neither_formulas_nor_markup() -> None:
    hostile = [worker(0, nodeName="$\\frac{1}{0}$", history=[life(1, "<b>&\x1b", 0, 5)])]
    svg = draw_svg(life_of(troubled_job(), hostile, None, NOW))
    assert "worker-0 ($\\frac{1}{0}$)" in texts_of(svg, "text")
    assert any("Pod 1 on <b>&  is not up yet" in tip for tip in texts_of(svg, "title"))


def test_png_is_a_picture(troubled: Life) -> None:
    assert draw_png(troubled).startswith(b"\x89PNG\r\n\x1a\n")


def test_page_shows_the_picture_and_the_same_in_tables(troubled: Life) -> None:
    written = page(troubled, draw_svg(troubled), draw_svg(troubled, PHONE))
    assert "<svg" in written
    assert "<td>ValueError: a &lt;bad&gt; batch</td>" in written
    assert "<td>worker 2 was lost: its node node-2 is gone</td>" in written
    for outside in ('src="http', "<script", "@import"):
        assert outside not in written


def test_a_narrow_window_has_a_drawing_of_its_own_and_no_id_is_there_twice(troubled: Life) -> None:
    narrow = draw_svg(troubled, PHONE)
    assert float(ElementTree.fromstring(narrow).get("viewBox", "").split()[2]) <= 390  # as wide as a phone
    assert "worker-0" in texts_of(narrow, "text")
    written = page(troubled, draw_svg(troubled), narrow)
    assert 'name="viewport"' in written
    clips = re.findall(r'<clipPath id="([^"]+)"', written)
    assert len(clips) == len(set(clips))


def test_drawing_and_page_have_colours_for_the_dark(troubled: Life) -> None:
    svg = draw_svg(troubled)
    assert "prefers-color-scheme: dark" in svg
    for colour in ("fill: #ffffff", "stroke: #000000"):  # by which the style finds what it changes
        assert f'style="{colour}' in svg
    assert page(troubled, svg, svg).count("prefers-color-scheme: dark") == 3


def test_scale_has_the_wall_clock_too(troubled: Life) -> None:
    assert {"1m", "00:01:00", "UTC"} <= set(texts_of(draw_svg(troubled), "text"))


WHOLE = 1_000.0


@given(
    marks=st.lists(st.tuples(st.floats(0, WHOLE), st.sampled_from([0.0, 30.0, 200.0])), max_size=12).map(
        sorted
    ),
    around=st.floats(0.5, 20),
)
def test_no_label_lies_under_a_cross_or_another_label(
    marks: list[tuple[float, float]], around: float
) -> None:
    places, widths = [at for at, _ in marks], [width for _, width in marks]
    found = sides(places, widths, around=around, begin=0.0, end=WHOLE)
    labels = [
        (at + around, at + around + width) if side is Side.RIGHT else (at - around - width, at - around)
        for at, width, side in zip(places, widths, found, strict=True)
        if side is not None
    ]
    assert all(0 <= begin < end <= WHOLE for begin, end in labels)
    taken = sorted([*labels, *((at, at) for at in places)])
    assert all(before[1] <= after[0] for before, after in pairwise(taken))


def test_a_lonely_cross_has_its_label_at_the_right_and_at_the_end_at_the_left() -> None:
    assert sides([10.0, 95.0], [20.0, 20.0], around=1, begin=0, end=100) == [Side.RIGHT, Side.LEFT]
    assert sides([10.0, 15.0], [20.0, 20.0], around=1, begin=0, end=100) == [None, Side.RIGHT]


def test_title_says_what_is_not_shown() -> None:
    cut = troubled_job(history=troubled_job()["status"]["history"][-2:])
    assert title(life_of(cut, [], 0.5, NOW)) == (
        "default/digits · Running · 5m since 2026-01-01 00:00:00 UTC · goodput 50.0% "
        "· the first 2m are forgotten"
    )


def test_failures_before_the_known_history_are_not_drawn_beside_it() -> None:
    cut = troubled_job(history=troubled_job()["status"]["history"][-2:])
    tips = texts_of(draw_svg(life_of(cut, troubled_workers(), 0.5, NOW)), "title")
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
            2,
            "dlr: x.pdf: a timeline is a file that ends with .svg, .png, .html.\n",
        )
        assert server.requests == []
        early = dlr("job", "timeline", "digits", "-o", str(tmp_path / "x.svg"))
        assert early.exit_code == 1 and "'digits' has no history yet" in early.err
        nowhere = dlr("job", "timeline", "digits", "-o", str(tmp_path / "none" / "x.svg"))
        assert nowhere.exit_code == 2 and "x.svg cannot be written: there is no folder " in nowhere.err
        (tmp_path / "folder.svg").mkdir()
        taken = dlr("job", "timeline", "digits", "-o", str(tmp_path / "folder.svg"))
        assert taken.exit_code == 1 and "folder.svg cannot be written: Is a directory." in taken.err

    def test_text_goes_to_the_terminal_and_needs_no_matplotlib(
        self, server: ScriptedServer, dlr: Dlr, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.answers |= {JOB: troubled_job(), WORKERS: listing(*troubled_workers()), EVENTS: listing()}
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.setenv("COLUMNS", "60")
        shown = dlr("job", "timeline", "digits", "--text")
        assert (shown.exit_code, shown.err) == (0, "")
        assert "\nworker-1  " in shown.out
        both = dlr("job", "timeline", "digits", "--text", "-o", "x.svg")
        assert (both.exit_code, both.err) == (2, "dlr: --text writes no file; drop it, or --output.\n")
