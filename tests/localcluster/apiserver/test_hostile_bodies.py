"""Bodies that somebody means ill with: the server refuses them, or keeps them."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
import urllib3
import yaml

from controller.kubeconfig import load_connection
from localcluster.paths import Home
from tests.conformance.objects import widget_crd
from tests.conformance.rawapi import APPLY_PATCH as APPLY
from tests.conformance.rawapi import JSON_PATCH
from tests.conformance.rawapi import MERGE_PATCH as MERGE
from tests.localcluster.apiserver.api import CONFIG_MAPS, CRDS, config_map
from tests.localcluster.running import Part

pytestmark = pytest.mark.real

LONGEST_SECONDS = 300.0
"""Time limit for a request, on a machine that does much other work too."""
YAML = "application/yaml"
BAGS = "/apis/example.com/v1/namespaces/default/bags"
BAG = {"apiVersion": "example.com/v1", "kind": "Bag", "metadata": {"name": "one"}}


def bag_definition() -> dict[str, Any]:
    """A kind that keeps whatever its objects say."""
    spec = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {"size": {"type": "integer", "default": 3}},
        "x-kubernetes-validations": [{"rule": "self == oldSelf || self.size < 10"}],
    }
    schema = {"type": "object", "properties": {"spec": spec}}
    names = {"plural": "bags", "singular": "bag", "kind": "Bag"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "bags.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }


class Client:
    """The admin, without any reading of what the server says."""

    def __init__(self, home: Home) -> None:
        trust = ssl.create_default_context(cafile=str(home.ca_certificate))
        self._pool = urllib3.PoolManager(ssl_context=trust, maxsize=4, retries=False, timeout=LONGEST_SECONDS)
        self._url = load_connection(home.kubeconfig).server
        self._token = home.admin_token.read_text()

    def __call__(
        self, method: str, path: str, body: bytes = b"", kind: str = "application/json"
    ) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        answer = self._pool.request(method, self._url + path, body=body, headers=headers)
        return answer.status, answer.data


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("hostile") / "home")
    home.create()
    server = Part(home, "apiserver", "--port", "0")
    server.start()
    yield home
    assert server.process is not None and server.process.poll() is None, "the server died"
    server.end()


@pytest.fixture(scope="module")
def client(home: Home) -> Client:
    http.client._MAXHEADERS = 1000  # type: ignore[attr-defined]  # warnings are headers
    client = Client(home)
    for definition in (bag_definition(), widget_crd()):
        assert client("POST", CRDS, json.dumps(definition).encode())[0] == 201
    return client


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x]\n"
        + "".join(
            f"b{n}: &b{n} [*{f'b{n - 1}' if n else 'a'}, *{f'b{n - 1}' if n else 'a'}]\n" for n in range(60)
        ),
        "a: &a [*a]",
    ],
)
def test_yaml_bombs_are_refused(client: Client, text: str) -> None:
    body = "apiVersion: example.com/v1\nkind: Bag\nmetadata: {name: bomb}\nspec:\n" + "".join(
        f"  {line}\n" for line in text.splitlines()
    )
    code, said = client("POST", BAGS, body.encode(), YAML)
    assert code == 400, said[:300]


def test_times_in_yaml_are_strings(client: Client) -> None:
    body = yaml.safe_dump(
        {"apiVersion": "example.com/v1", "kind": "Bag", "metadata": {"name": "yaml"}, "spec": {}}
    )
    code, said = client("POST", BAGS, body.replace("{}", "{day: 2026-01-01}").encode(), YAML)
    assert code == 201 and json.loads(said)["spec"]["day"] == "2026-01-01"


@pytest.mark.parametrize("levels", [300, 10_000])
def test_what_is_nested_too_deeply_is_refused_by_every_verb(client: Client, levels: int) -> None:
    deep = b'{"a":' * levels + b"1" + b"}" * levels
    path = f"{BAGS}/deep"
    plain = json.dumps({**BAG, "metadata": {"name": "deep"}, "spec": {}}).encode()
    assert client("POST", BAGS, plain)[0] in (201, 409)
    for method, body, kind in (
        ("PUT", plain.replace(b'"spec": {}', b'"spec": ' + deep), "application/json"),
        ("PATCH", b'{"spec":' + deep + b"}", MERGE),
        ("PATCH", b'[{"op":"add","path":"/spec/deep","value":' + deep + b"}]", JSON_PATCH),
        ("PATCH", plain.replace(b'"spec": {}', b'"spec": ' + deep), APPLY),
    ):
        code, said = client(
            method, f"{path}?fieldManager=x&force=true" if kind == APPLY else path, body, kind
        )
        assert code in (400, 422), (method, kind, said[:300])


def test_what_etcd_would_not_take_is_refused_as_there(client: Client) -> None:
    def post(size: int) -> tuple[int, bytes]:
        body = json.dumps({**BAG, "metadata": {"name": "large"}, "spec": {"x": "y" * size}}).encode()
        return client("POST", BAGS, body)

    code, said = post(1536 * 1024)
    assert code == 500 and b"etcdserver: request is too large" in said
    assert post(3 * 1024 * 1024)[0] == 413
    assert post(1536 * 1024 - 1000)[0] == 201


def test_copies_of_copies_are_bounded(client: Client) -> None:
    body = {**BAG, "metadata": {"name": "copies"}, "spec": {}}
    assert client("POST", BAGS, json.dumps(body).encode())[0] == 201
    operations = [{"op": "copy", "from": "/spec", "path": f"/spec/a{number}"} for number in range(60)]
    code, said = client("PATCH", f"{BAGS}/copies", json.dumps(operations).encode(), JSON_PATCH)
    assert code in (400, 422), said[:300]


ENTRY = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": 5}


@pytest.mark.parametrize("owners", [[None], [ENTRY]])
def test_managed_fields_of_any_form_are_ignored_or_refused_and_applies_go_on(
    client: Client, owners: Any
) -> None:
    one = f"{CONFIG_MAPS}/managed"

    def apply(manager: str, value: str, force: str) -> int:
        obj = config_map("managed") | {"data": {"a": value}}
        return client(
            "PATCH", f"{one}?fieldManager={manager}&force={force}", json.dumps(obj).encode(), APPLY
        )[0]

    assert apply("a", "b", "true") in (200, 201)
    body = {"metadata": {"managedFields": owners}, "data": {"a": "c"}}
    assert client("PATCH", one, json.dumps(body).encode(), MERGE)[0] in (200, 400, 422)
    replaced = config_map("managed", managedFields=owners)
    assert client("PUT", one, json.dumps(replaced).encode())[0] in (200, 400, 422)
    assert apply("b", "b", "false") in (200, 409)
    assert apply("a", "a", "true") == 200
    assert json.loads(client("GET", one)[1])["data"] == {"a": "a"}
    client("DELETE", one)
