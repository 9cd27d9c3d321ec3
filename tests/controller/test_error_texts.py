"""What the failures of a call to an API server say to a person."""

from __future__ import annotations

import pytest

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
