"""Watches and lists: nothing missed, nothing twice, whatever the selection."""

import pytest

from tests.localcluster.apiserver.api import CONFIG_MAPS, Api

pytestmark = pytest.mark.real


async def version(api: Api) -> str:
    return str((await api.get(CONFIG_MAPS)).body["metadata"]["resourceVersion"])


async def test_lists_of_other_moments_are_refused(api: Api) -> None:
    current = int(await version(api))
    assert (await api.get(CONFIG_MAPS, resourceVersion=current, resourceVersionMatch="Exact")).status == 200
    assert (await api.get(CONFIG_MAPS, resourceVersion=1, resourceVersionMatch="Exact")).status == 410
    assert (await api.get(CONFIG_MAPS, resourceVersion=1)).status == 200
    answer = await api.get(CONFIG_MAPS, resourceVersion=current + 100)
    assert (answer.status, answer.body["reason"]) == (504, "Timeout")
