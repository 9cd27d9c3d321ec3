"""Texts cut to bytes of JSON, as Go writes it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import controller.wording
from crds.elasticworker import MAX_EXIT_TEXT, WorkerExit
from crds.texts import all_plain, ending, json_bytes, plain, shortened
from tests.crds.go_json import go_bytes

TEXTS = st.text(st.sampled_from('ab<>&"\\\n\t\x01\x7féß統😀\u2028…'), max_size=60)
ORDINARY = st.text(
    st.characters(min_codepoint=32, max_codepoint=126, exclude_characters='<>&"\\'), max_size=60
)
LIMITS = st.integers(1, 60)
VALUES = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.none(), lambda of: st.lists(of) | st.dictionaries(TEXTS, of)
)


def of_text(text: str) -> int:
    return go_bytes(text) - 2


@given(VALUES)
def test_the_size_is_that_of_go(value: Any) -> None:
    assert json_bytes(value) == go_bytes(value)


def test_a_control_character_takes_six_bytes_and_half_a_surrogate_three() -> None:
    assert json_bytes("\b") == json_bytes("\x00") == json_bytes("<") == 8
    assert json_bytes("\ud800") == 5


@given(TEXTS, LIMITS)
def test_a_text_that_fits_is_whole_and_of_another_as_much_is_kept_as_fits(text: str, limit: int) -> None:
    short = shortened(text, limit)
    if of_text(text) <= limit:
        assert short == text
        return
    kept = short.removesuffix("…")
    assert short == kept + "…" and text.startswith(kept)
    assert of_text(kept) <= limit - 1 < of_text(text[: len(kept) + 1])


@given(TEXTS, LIMITS)
def test_a_text_that_was_cut_is_not_cut_again(text: str, limit: int) -> None:
    assert shortened(shortened(text, limit), limit) == shortened(text, limit)


@given(TEXTS, LIMITS)
def test_of_an_end_as_much_is_kept_as_fits(text: str, limit: int) -> None:
    end = ending(text, limit)
    assert text.endswith(end) and of_text(end) <= limit
    assert end == text or of_text(text[-len(end) - 1 :]) > limit


@given(ORDINARY, LIMITS)
def test_sentences_of_plain_ascii_are_cut_by_their_characters(text: str, limit: int) -> None:
    assert shortened(text, limit) == controller.wording.shortened(text, limit)
    assert ending(text, limit) == text[-limit:]


def test_what_is_read_of_a_worker_is_cut_by_its_bytes() -> None:
    said = {"incarnation": 1, "exitClass": "UserError", "reason": "Error", "time": "2026-11-22T08:00:00Z"}
    end = WorkerExit.model_validate(said | {"message": "<" * 1_000, "logTail": "<" * 1_000 + "end"})
    assert len(end.message) == MAX_EXIT_TEXT // 6 + 1 and end.message.endswith("<…")
    assert of_text(end.log_tail) <= MAX_EXIT_TEXT and end.log_tail.endswith("<end")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ValueError: a\rb", "ValueError: a b"),
        ("a\r\nb\n\tc", "a\nb\n\tc"),
        ("\x1b[1;31mred\x1b[0m \x07bell", "red  bell"),
        ("\x1b]0;a title\x07text \x1b", "text  "),
        ("nul\0 del\x7f csi\x9b line\u2028 é\xa0✓", "nul  del  csi  line  é\xa0✓"),
        ("exe.\u202egpj.\u202c \u2066x\u2069 \u200f\u05d0", "exe. gpj.   x  \u200f\u05d0"),
    ],
)
def test_a_text_from_outside_has_nothing_that_a_terminal_obeys(text: str, shown: str) -> None:
    assert plain(text) == shown == plain(shown)
    assert all_plain({"a\r": [text, 1, None]}) == {"a ": [shown, 1, None]}
