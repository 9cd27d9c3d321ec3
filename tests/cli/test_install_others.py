"""Which namespace another controller of dlr looks after."""

from __future__ import annotations

import pytest

from dlr.commands.install.others import scope_of


@pytest.mark.parametrize(
    ("arguments", "scope"),
    [
        (None, None),
        (["--leader-elect", "--lease-namespace=dlr-system"], None),
        (["--namespace=a"], "a"),
        (["--namespace", "a", "--leader-elect"], "a"),
        (["-n", "a"], "a"),
        (["-na"], "a"),
        (["--namespace=a", "-n", "b"], "b"),
    ],
)
def test_the_namespace_that_a_controller_is_given(arguments: list[str] | None, scope: str | None) -> None:
    sidecar = {"name": "proxy", "args": ["-n", "5"]}
    container = {"name": "controller", "command": ["dlr", "controller"], "args": arguments}
    spec = {"containers": [sidecar, container]}
    assert scope_of({"spec": {"template": {"spec": spec}}}) == scope
