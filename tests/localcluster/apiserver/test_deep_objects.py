"""Objects that are nested as deeply as Kubernetes allows: they are kept as any other, and hold nobody up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson
import pytest

from localcluster.paths import Home
from tests.localcluster.apiserver.api import CONFIG_MAPS, CRDS, JSON_PATCH, MERGE, Api, config_map, owned_by
from tests.localcluster.apiserver.conftest import Running, connected, running, start

pytestmark = pytest.mark.real

BAGS = "/apis/example.com/v1/namespaces/default/bags"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
SPEC_LEVELS = 2  # of the object and of its spec
MOST = 10_000
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"


def bag_definition() -> dict[str, Any]:
    spec = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {"size": {"type": "integer", "default": 3}},
        "x-kubernetes-validations": [{"rule": "self == oldSelf || self.size < 10"}],
    }
    strict = {"type": "object", "properties": {"a": {"type": "string"}}}
    schema = {"type": "object", "properties": {"spec": spec, "strict": strict, "status": spec}}
    names = {"plural": "bags", "singular": "bag", "kind": "Bag"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "bags.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": names,
            "versions": [{**version, "subresources": {"status": {}}}],
        },
    }


def nested(levels: int, core: bytes = b"1") -> bytes:
    return b'{"a":' * levels + core + b"}" * levels


def bag(name: str, deep: bytes, *, field: str = "spec", more: str = "") -> bytes:
    head = f'{{"apiVersion":"example.com/v1","kind":"Bag","metadata":{{"name":"{name}"}}{more},"{field}":'
    return head.encode() + b'{"size":1,"deep":' + deep + b"}}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A process, whose stack is deep enough."""
    home = Home(tmp_path_factory.mktemp("deep") / "home")
    with running(home):
        yield home


@pytest.fixture
async def bags(server: Home) -> AsyncIterator[Api]:
    async with connected(server, Running(server)) as api:
        await api.post(CRDS, bag_definition())
        yield api
        for path in (BAGS, CONFIG_MAPS, f"{ADMISSION}/validatingadmissionpolicybindings"):
            assert (await api.delete(path)).code == 200


@pytest.mark.parametrize("levels", [254, 255, 1025, MOST])
async def test_an_object_lives_at_any_depth(bags: Api, levels: int) -> None:
    deep = nested(levels - SPEC_LEVELS)
    async with bags.watch(BAGS) as events:
        assert (await bags.post(BAGS, bag("one", deep))).code == 201
        assert deep in await events.line()
        for options in ({}, {"labelSelector": "!a"}):
            assert deep in await raw(bags, BAGS, **options)
        assert deep in await raw(bags, f"{BAGS}/one")
        assert deep in await raw(bags, BAGS, accept=TABLE, includeObject="Object")
        assert (await bags.get(BAGS, accept=PARTIAL)).names == ["one"]
        assert (await bags.patch(f"{BAGS}/one", {"metadata": {"labels": {"a": "b"}}})).code == 200
        assert deep in await events.line()
    deeper = nested(levels - SPEC_LEVELS, b'"x"')
    merge = b'{"spec":{"deep":' + deeper + b"}}"
    assert (await bags.patch(f"{BAGS}/one", merge)).code == 200
    assert deeper in await raw(bags, f"{BAGS}/one")
    operation = b'[{"op":"replace","path":"/spec/deep","value":' + deep + b"}]"
    assert (await bags.patch(f"{BAGS}/one", operation, JSON_PATCH)).code == 200
    assert deep in await raw(bags, f"{BAGS}/one")
    status = bag("one", deeper, field="status")
    assert (await bags.patch(f"{BAGS}/one/status", status)).code == 200
    both = await raw(bags, f"{BAGS}/one")
    assert deep in both and deeper in both
    refused = await bags.patch(f"{BAGS}/one", {"spec": {"size": 11}})
    assert refused.code == 422 and "failed rule" in refused.message
    assert (await bags.put(f"{BAGS}/one", both)).code == 200, "the very same object"
    assert await raw(bags, f"{BAGS}/one") == both
    assert (await bags.delete(f"{BAGS}/one")).code == 200
    assert (await bags.get(BAGS)).names == []


async def raw(api: Api, path: str, **options: Any) -> bytes:
    answer = await api.get(path, **options)
    assert answer.code == 200
    return answer.content


async def test_one_level_more_is_refused_by_every_verb(bags: Api) -> None:
    deep = nested(MOST - SPEC_LEVELS + 1)
    answer = await bags.post(BAGS, bag("one", deep))
    assert (answer.code, answer.reason) == (400, "BadRequest") and "exceeded max depth" in answer.message
    await bags.created(BAGS, bag("one", b"{}"))
    for method, body, kind in (
        ("PUT", bag("one", deep), "application/json"),
        ("PATCH", b'{"spec":{"deep":' + deep + b"}}", MERGE),
        ("PATCH", b'[{"op":"add","path":"/spec/deep","value":' + deep + b"}]", JSON_PATCH),
        ("DELETE", nested(MOST + 1), "application/json"),
    ):
        answer = await bags.request(method, f"{BAGS}/one", body, content_type=kind)
        assert answer.code == 400, (method, kind)


async def test_unknown_fields_are_dropped_or_refused_at_any_depth(bags: Api) -> None:
    deep = nested(MOST - 2)
    body = bag("one", deep, field="strict")
    refused = await bags.post(BAGS, body, fieldValidation="Strict")
    assert refused.code == 400 and 'unknown field "strict.deep"' in refused.message
    answer = await bags.post(BAGS, body)
    assert answer.code == 201 and "strict" in answer.body and "deep" not in answer.body["strict"]
    assert (await bags.post(CONFIG_MAPS, b'{"metadata":{"name":"m"},"data":' + deep + b"}")).code == 400
    assert (await bags.post(CONFIG_MAPS, b'{"metadata":{"name":"m","labels":' + deep + b"}}")).code == 400


async def test_policies_and_the_garbage_collector_take_them(bags: Api) -> None:
    rules = [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["*"]}]
    spec = {
        "matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": "object.spec == oldObject.spec", "message": "the spec stays"}],
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "same"}}
    policy = {**kind, "kind": "ValidatingAdmissionPolicy", "spec": spec}
    await bags.created(f"{ADMISSION}/validatingadmissionpolicies", policy)
    binding = {"policyName": "same", "validationActions": ["Deny"]}
    bound = {**kind, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding}
    await bags.created(f"{ADMISSION}/validatingadmissionpolicybindings", bound)
    owner = await bags.created(CONFIG_MAPS, config_map("owner"))
    reference = orjson.dumps(owned_by(owner)).decode()
    deep = nested(MOST - SPEC_LEVELS)
    assert (await bags.post(BAGS, bag("one", deep))).code == 201
    patch = f'{{"metadata":{{"ownerReferences":{reference}}}}}'.encode()
    assert (await bags.patch(f"{BAGS}/one", patch)).code == 200
    changed = await bags.patch(f"{BAGS}/one", b'{"spec":{"deep":' + nested(MOST - SPEC_LEVELS, b"2") + b"}}")
    assert changed.code == 422 and "the spec stays" in changed.message
    await bags.delete(f"{CONFIG_MAPS}/owner")
    await bags.gone(f"{BAGS}/one")


async def test_they_survive_the_server(home: Home) -> None:
    deep = nested(MOST - SPEC_LEVELS)
    for round_ in range(2):
        process = start(home)
        assert process.stdout is not None and "listening" in process.stdout.readline()
        async with connected(home, Running(home)) as api:
            if not round_:
                await api.created(CRDS, bag_definition())
                assert (await api.post(BAGS, bag("one", deep))).code == 201
            assert deep in await raw(api, f"{BAGS}/one")
        process.kill()
        process.communicate()


async def test_more_than_etcd_takes_is_refused_as_there(bags: Api) -> None:
    fits = bag("one", b'"' + b"x" * (1536 * 1024 - 1000) + b'"')
    assert (await bags.post(BAGS, fits)).code == 201
    answer = await bags.post(BAGS, bag("two", b'"' + b"x" * 1536 * 1024 + b'"'))
    assert answer.code == 500 and answer.message == "etcdserver: request is too large"
    assert "reason" not in answer.body
    trial = await bags.post(BAGS, bag("two", b'"' + b"x" * 1536 * 1024 + b'"'), dryRun="All")
    assert trial.code == 201
    answer = await bags.post(BAGS, bag("two", b'"' + b"x" * 3 * 1024 * 1024 + b'"'))
    assert (answer.code, answer.reason) == (413, "RequestEntityTooLarge")


async def test_copies_of_copies_are_bounded(bags: Api) -> None:
    await bags.created(BAGS, bag("one", b"{}"))
    operations = [{"op": "copy", "from": "/spec", "path": f"/spec/a{number}"} for number in range(60)]
    answer = await bags.patch(f"{BAGS}/one", operations, JSON_PATCH)
    assert answer.code == 422 and "copies" in answer.message


async def test_fields_that_come_twice_are_told_of_to_those_who_ask(bags: Api) -> None:
    body = bag("one", b'{"x":1,"x":2}')
    refused = await bags.post(BAGS, body, fieldValidation="Strict")
    assert refused.code == 400 and 'strict decoding error: duplicate field "spec.deep.x"' in refused.message
    warned = await bags.post(BAGS, body, fieldValidation="Warn")
    assert warned.code == 201 and warned.body["spec"]["deep"] == {"x": 2}
    assert 'duplicate field \\"spec.deep.x\\"' in warned.headers["Warning"]
