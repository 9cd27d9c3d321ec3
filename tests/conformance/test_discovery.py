"""How clients find out what is served: aggregated discovery, its older forms, and kubectl's view of it."""

from __future__ import annotations

from typing import Any

import pytest

from .kubectl import Kubectl
from .rawapi import Api
from .resources import (
    CATEGORY,
    WG,
    WIDGETS,
)

pytestmark = pytest.mark.real

JSON = dict[str, Any]

GROUP_PATH = f"/apis/{WIDGETS.group}/{WIDGETS.version}"


@pytest.mark.parametrize(
    "path",
    ["/apis/nothing.example.com", f"{GROUP_PATH}/gadgets", "/api/v1/gadgets", "/api/v2", "/nothing"],
)
async def test_what_is_not_served_is_not_found(api: Api, path: str) -> None:
    assert (await api.call("GET", path)).status == 404


async def test_kubectl_lists_what_is_served(kubectl: Kubectl) -> None:
    resources = await kubectl.run("api-resources", "--api-group", WIDGETS.group)
    row = next(line for line in resources.lines if line.startswith(f"{WIDGETS.plural} "))
    assert row.split() == [WIDGETS.plural, WG, WIDGETS.api_version, "true", WIDGETS.kind]
    assert WIDGETS.api_version in (await kubectl.run("api-versions")).lines
    version = (await kubectl.run("version", "-o", "json")).json
    assert version["serverVersion"]["gitVersion"].startswith("v1.")


async def test_kubectl_gets_a_category(kubectl: Kubectl, make: Any) -> None:
    await make.widget("in-category")
    output = await kubectl.run("get", CATEGORY, "-o", "name", namespace=make.namespace)
    assert output.lines == [f"{WIDGETS.singular_group}/in-category"]
