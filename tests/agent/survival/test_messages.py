"""What an agent and its processes say to each other is read as it was meant, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.facts.place import Place
from agent.survival.messages import (
    MAX_FROM_AGENT,
    MAX_FROM_PROCESS,
    MAX_NUMBER,
    MAX_TEXT,
    Enters,
    FromAgent,
    FromProcess,
    Leave,
    Left,
    Lost,
    NextRound,
    Unable,
    encode,
    read_from_agent,
    read_from_process,
)

NUMBERS = st.integers(0, MAX_NUMBER)
TEXTS = st.text(max_size=60)
PROCESS = (
    st.builds(Enters, st.none() | st.builds(Place, NUMBERS, NUMBERS))
    | st.builds(Left, NUMBERS)
    | st.builds(Lost, NUMBERS, TEXTS)
    | st.builds(Unable, TEXTS)
)
REDIRECTS = st.sampled_from([(), (1,), (2,), (1, 2)])
AGENT = st.builds(Leave, NUMBERS) | st.builds(NextRound, st.dictionaries(TEXTS, TEXTS, max_size=3), REDIRECTS)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
KINDS = st.sampled_from(["enters", "left", "lost", "unable", "leave", "round", "other"])
NAMES = st.sampled_from(["round", "error", "env", "redirects"])
CONTENTS = st.dictionaries(NAMES, JSON | NUMBERS, max_size=3) | JSON


@given(PROCESS)
def test_a_message_of_a_process_is_read_as_it_was_sent(message: FromProcess) -> None:
    assert read_from_process(encode(message)) == message


@given(AGENT)
def test_a_message_of_an_agent_is_read_as_it_was_sent(message: FromAgent) -> None:
    assert read_from_agent(encode(message)) == message


@given(
    st.binary(max_size=60)
    | st.dictionaries(KINDS, CONTENTS, max_size=2).map(lambda it: json.dumps(it).encode())
)
def test_whatever_is_read_means_the_same_when_it_is_sent_again(data: bytes) -> None:
    for read in (read_from_process, read_from_agent):
        try:
            message: Any = read(data)
        except ValueError:
            continue
        assert read(encode(message)) == message


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "5", "{}", '{"left": true}', '{"left": -1}', '{"left": 1, "leave": 2}', '{"unable": 5}'],
)
def test_what_is_no_message_is_a_value_error(text: str) -> None:
    for read in (read_from_process, read_from_agent):
        with pytest.raises(ValueError):
            read(text.encode())


def test_the_longest_messages_can_be_read_and_a_longer_text_loses_its_beginning() -> None:
    longest = encode(Lost(MAX_NUMBER, "the beginning" + "\N{OLD PERSIAN SIGN AURAMAZDAA}" * MAX_TEXT))
    assert len(longest) <= MAX_FROM_PROCESS
    message = read_from_process(longest)
    assert isinstance(message, Lost) and len(message.error) == MAX_TEXT and "beginning" not in message.error
    with pytest.raises(ValueError, match="bytes"):
        read_from_agent(encode(NextRound({"LONG": "a" * MAX_FROM_AGENT})))
