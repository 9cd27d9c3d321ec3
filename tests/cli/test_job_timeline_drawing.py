"""The timeline as a file: SVG with tooltips; and what is said when it cannot be."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlr.job.timeline.drawing import STYLE, draw, svg_file
from dlr.job.timeline.life import JobTimeline, life_of
from tests.cli.scripted import Dlr, Script, job, show, worker
from tests.cli.troubled import NOW, SUBMITTED, episode, life, troubled_job, troubled_workers

SVG = "http://www.w3.org/2000/svg"


@pytest.fixture
def troubled() -> JobTimeline:
    return life_of(troubled_job(), troubled_workers(), 0.81, NOW)


def elements(svg: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(f"{{{SVG}}}{tag}"))


def texts_of(svg: str, tag: str) -> list[str]:
    """Without tooltips, which are elements within."""
    found = []
    for each in elements(svg, tag):
        parts = [
            ("" if part.tag.endswith("title") else "".join(part.itertext()), part.tail or "") for part in each
        ]
        found.append(((each.text or "") + "".join(within + tail for within, tail in parts)).strip())
    return found


def percents(svg: str, *names: str) -> list[float]:
    """All places along the time."""
    values = (each.get(name, "") for each in ElementTree.fromstring(svg).iter() for name in names)
    return [float(value.removesuffix("%")) for value in values if value.endswith("%")]


def test_svg_names_states_rounds_workers_and_goodput(troubled: JobTimeline) -> None:
    svg = svg_file(troubled, VERDICT)
    shown = texts_of(svg, "text")
    assert {"job", "worker-0 (node-0)", "worker-2 (node-3)", "round 1", "round 3"} <= set(shown)
    assert {"goodput 81.0%", "UserError", "NodeLost"} <= set(shown)
    assert "■Training■Recovering■Pending, Waiting✕failure" in "".join(shown).replace("Forming■", "").replace(
        "▲", ""
    )
    tips = texts_of(svg, "title")
    assert "UserError, digits-worker-1, at 1m (00:01:00 UTC): ValueError: a <bad> batch" in tips
    assert "Training for 2m28s, 2m32s to 5m: Pod 2 on node-3, round 3" in tips
    assert "round 2, workers 0-2" in tips
    assert svg_file(troubled, VERDICT) == svg


def test_texts_of_the_cluster_are_no_markup() -> None:
    hostile = [worker(0, nodeName="<script>", history=[life(1, '<b>&"\x1b\x00\ud800', 0, 5)])]
    made = troubled_job()
    made["status"]["history"][1]["reason"] = "</title><script>"
    drawn = life_of(made, hostile, None, NOW)
    for svg in (draw(drawn), svg_file(drawn, "<script>")):
        assert not elements(svg, "script")
        assert "worker-0 (<script>)" in texts_of(svg, "text")
        assert any('Pod 1 on <b>&"    is not up yet' in tip for tip in texts_of(svg, "title"))


def test_what_a_dashboard_shows_has_no_style_that_its_policy_forbids(troubled: JobTimeline) -> None:
    assert "<style" not in draw(troubled)
    assert "style=" not in draw(troubled)
    classes = {
        name
        for each in ElementTree.fromstring(draw(troubled)).iter()
        for name in each.get("class", "").split()
    }
    assert all(f".{name}" in STYLE for name in classes)


VERDICT = "Trains on 3 of 3 workers; 2 failures cost 42s"
MOMENTS = st.lists(st.integers(0, 299), min_size=1, max_size=12, unique=True).map(sorted)


@settings(max_examples=30)
@given(moments=MOMENTS, goodput=st.one_of(st.none(), st.floats(0, 1)))
def test_everything_is_within_the_width_and_every_stretch_is_seen(
    moments: list[int], goodput: float | None
) -> None:
    states = ("Training", "Recovering", "Pending")
    history = [
        episode(states[at_ % 3], moment, number, "0")
        for number, (at_, moment) in enumerate(enumerate(moments), 1)
    ]
    for each in history:
        if each["state"] == "Recovering":
            each["failure"] = {"worker": "digits-worker-0", "exitClass": "Killed", "time": each["since"]}
    drawn = life_of(troubled_job(history=history, lastFailure=None), [worker(0)], goodput, NOW)
    svg = draw(drawn)
    assert all(0 <= each <= 100 for each in percents(svg, "x", "x1", "x2"))
    assert all(0 < width <= 100 for width in percents(svg, "width"))
    assert len(elements(svg, "rect")) >= len(moments)


class TestCommand:
    def test_writes_a_file(self, server: Script, dlr: Dlr, tmp_path: Path) -> None:
        show(server, troubled_job(), troubled_workers())
        file = tmp_path / "timeline.SVG"
        done = dlr("job", "timeline", "digits", "-o", str(file))
        assert (done.exit_code, done.out) == (0, f"{file}\n")
        assert file.read_bytes().startswith(b"<svg")

    def test_what_cannot_be_drawn_or_written_is_one_sentence(
        self, server: Script, dlr: Dlr, tmp_path: Path
    ) -> None:
        show(server, [job(), troubled_job()])
        odd = dlr("job", "timeline", "digits", "-o", "x.pdf")
        assert (odd.exit_code, odd.err) == (2, "dlr: x.pdf: a timeline is a file that ends with .svg.\n")
        assert server.requests == []
        early = dlr("job", "timeline", "digits", "-o", str(tmp_path / "x.svg"))
        assert early.exit_code == 1 and "'digits' has no history yet" in early.err
        nowhere = dlr("job", "timeline", "digits", "-o", str(tmp_path / "none" / "x.svg"))
        assert nowhere.exit_code == 1 and "x.svg cannot be written: No such file" in nowhere.err
        (tmp_path / "folder.svg").mkdir()
        taken = dlr("job", "timeline", "digits", "-o", str(tmp_path / "folder.svg"))
        assert taken.exit_code == 1 and "folder.svg cannot be written: Is a directory." in taken.err


@pytest.mark.parametrize("seconds", [-5_000.0, 0.0, 100.0])
@pytest.mark.parametrize("forgotten", [0, 3, 6])
def test_clock_that_is_behind_the_clusters_is_no_obstacle(seconds: float, forgotten: int) -> None:
    made = troubled_job()
    made["status"]["history"] = made["status"]["history"][forgotten:]
    found = life_of(made, troubled_workers(), 0.81, SUBMITTED + timedelta(seconds=seconds))
    assert found.seconds == 152.0, "the begin of its newest state"
    ElementTree.fromstring(svg_file(found, "Trains"))
