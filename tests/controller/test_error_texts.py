"""What the failures of a call to an API server say to a person."""

from __future__ import annotations

import json

import pytest

from controller.connection import POD_SOURCE, Connection
from controller.errors import StatusCause


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (
            StatusCause("spec.a", "Invalid value: -1: spec.a in body should be greater than or equal to 0"),
            "spec.a: Invalid value: -1: should be greater than or equal to 0",
        ),
        (StatusCause("spec.a", "Invalid value: spec.b in body"), "spec.a: Invalid value: spec.b in body"),
        (StatusCause("<nil>", "Invalid value: too long"), "Invalid value: too long"),
    ],
)
def test_a_cause_names_its_field_once(cause: StatusCause, text: str) -> None:
    assert str(cause) == text


def said(body: bytes, status: int = 403, source: str = "the test") -> str:
    return str(Connection("https://10.96.0.1", source).refusal(status, body, None))


def test_a_refusal_of_the_api_server_keeps_its_words_and_others_name_the_server() -> None:
    denial = {"kind": "Status", "message": 'admission webhook "w" denied the request: no'}
    assert said(json.dumps(denial).encode()) == denial["message"], "webhooks need give no reason"
    forbidden = {"kind": "Status", "reason": "Forbidden", "message": "pods is forbidden"}
    assert said(json.dumps(forbidden).encode()) == "pods is forbidden"
    of_a_server = "The API server at https://10.96.0.1 has refused a request (403: "
    for body in (b"", b"<html>", b"Forbidden", b'{"kind": "Status"}', b'{"message": "Forbidden"}', b"[1]"):
        assert said(body) == f"{of_a_server}Forbidden)."


def test_the_address_of_a_pods_own_api_server_is_in_no_status() -> None:
    webhook = b'{"kind": "Status", "message": "failed calling webhook w"}'
    assert (
        said(webhook, 500, POD_SOURCE) == "The API server cannot answer now (500: failed calling webhook w)."
    )
    for status, body in ((401, b""), (403, b"<html>"), (503, b"")):
        assert "10.96" in said(body, status) and "10.96" not in said(body, status, POD_SOURCE)
