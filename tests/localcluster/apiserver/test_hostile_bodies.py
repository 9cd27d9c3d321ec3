"""Bodies that somebody means ill with: the server refuses or keeps them, and serves an innocent client beside them."""

from __future__ import annotations

import copy
import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import urllib3
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.kubeconfig import load_connection
from localcluster.paths import Home
from tests.conformance.objects import widget_crd
from tests.conformance.rawapi import APPLY_PATCH as APPLY
from tests.conformance.rawapi import JSON_PATCH
from tests.conformance.rawapi import MERGE_PATCH as MERGE
from tests.conformance.rawapi import STRATEGIC_PATCH as STRATEGIC
from tests.localcluster.apiserver.api import CONFIG_MAPS, CRDS, PODS, WIDGETS, config_map, pod, widget
from tests.localcluster.running import Part

pytestmark = pytest.mark.real

EXAMPLES = 100
LONGEST_SECONDS = 300.0
"""Time limit for a request, on a machine that does much other work too."""
YAML = "application/yaml"
MARK = "\uf8ffmark\uf8ff"
BAGS = "/apis/example.com/v1/namespaces/default/bags"
FORESEEN = b"etcdserver: request is too large"
"""What Kubernetes answers with 500, too."""
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


DEPTHS = (2, 200, 253, 254, 255, 1_023, 1_025, 200_000)
SIZES = (1, 1_000_000, 1_572_864, 2_000_000, 3_145_728, 4_000_000)
ODD_TEXTS = [
    *rb"""
1e999
-0
9223372036854775808
18446744073709551616
NaN
0.1e-400
"\ud800"
"\u0000"
{"a":1,"a":2}
[,]
{
"
'x'
1.0
1e5
{"$patch":"delete"}
{"$retainKeys":[1]}
[{"$patch":"replace"}]
"2026-01-01T00:00:00+99:99"
"${a:-${a:-"
!!python/object:os.system {}
&a [*a]
0x_
2026-01-01
{[1]: 2}
!!binary x
"(a+)+$"
"self.all(x, x.all(y, y == x))"
""".split(b"\n")[1:-1],
    b'"\xff\xfe"',
    b"",
    b"9" * 400,
    b"9" * 5_000,
    b'{"self": "' + b"(" * 5_000 + b'"}',
]


def deep(levels: int, kind: str) -> bytes:
    match kind:
        case "objects":
            return b'{"a":' * levels + b"1" + b"}" * levels
        case "lists":
            return b"[" * levels + b"]" * levels
        case "schemas":
            return (
                b'{"type":"object","properties":{"a":' * (levels // 2)
                + b'{"type":"string"}'
                + b"}}" * (levels // 2)
            )
        case _:
            return b"[" * levels


FRAGMENTS = (
    st.sampled_from(ODD_TEXTS)
    | st.builds(deep, st.sampled_from(DEPTHS), st.sampled_from(["objects", "lists", "schemas", "unclosed"]))
    | st.builds(lambda size: b'"' + b"x" * size + b'"', st.sampled_from(SIZES))
    | st.builds(
        lambda count: b"[" + b",".join([b'{"name":"a"}'] * count) + b"]", st.sampled_from([2, 1_000, 50_000])
    )
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    ).map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=30)
)
RULES = [{"apiGroups": ["x"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["y"]}]
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"

VALID: list[tuple[str, dict[str, Any]]] = [
    (
        PODS,
        pod(
            "one",
            labels={"a": "b"},
            volumes=[{"name": "v", "emptyDir": {}}],
            tolerations=[{"key": "a", "operator": "Exists"}],
            priorityClassName="system-node-critical",
        ),
    ),
    (CONFIG_MAPS, config_map("one", labels={"a": "b"}, finalizers=["a/b"], annotations={"c": "d"})),
    (CRDS, widget_crd()),
    (WIDGETS, {**widget("one", {"size": 3, "replicas": 2}), "status": {"phase": "Up"}}),
    (
        f"{RBAC}/roles",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "one"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
        },
    ),
    (
        f"{ADMISSION}/validatingadmissionpolicies",
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": "one"},
            "spec": {
                "failurePolicy": "Ignore",
                "matchConstraints": {"resourceRules": RULES, "objectSelector": {"matchLabels": {"a": "b"}}},
                "variables": [{"name": "v", "expression": "1"}],
                "matchConditions": [{"name": "n", "expression": "true"}],
                "validations": [{"expression": "true", "message": "m"}],
            },
        },
    ),
    (
        "/api/v1/namespaces",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "one"}, "spec": {"finalizers": ["x"]}},
    ),
    (
        "/api/v1/namespaces/default/serviceaccounts/default/token",
        {"spec": {"expirationSeconds": 3600, "boundObjectRef": {"kind": "Pod", "name": "one", "uid": "x"}}},
    ),
    (f"{PODS}/one/binding", {"metadata": {"name": "one"}, "target": {"kind": "Node", "name": "node-0"}}),
    (f"{PODS}/one/eviction", {"deleteOptions": {"gracePeriodSeconds": 3, "preconditions": {"uid": "x"}}}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in entries:
        yield from places(child, (*path, key))


BODIES: list[tuple[str, dict[str, Any]]] = [
    *VALID,
    (BAGS, {**BAG, "spec": {"size": 1, "x": 2}}),
    (
        "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
        {"metadata": {"name": "one"}, "spec": {"a": 1}},
    ),
]
PLACES = [(path, body, place) for path, body in BODIES for place in places(body)]


def spoiled(body: Any, place: tuple[Any, ...], fragment: bytes) -> bytes:
    """A body's text with something else at a place of it."""
    marked = copy.deepcopy(body)
    part = marked
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = MARK
    return json.dumps(marked, ensure_ascii=False).encode().replace(f'"{MARK}"'.encode(), fragment)


def operations(place: tuple[Any, ...], fragment: bytes, verb: str) -> bytes:
    pointer = "".join(f"/{str(key).replace('~', '~0').replace('/', '~1')}" for key in place)
    operation = {"op": verb, "path": pointer, "from": f"/{place[0]}", "value": MARK}
    one = json.dumps(operation, ensure_ascii=False).encode().replace(f'"{MARK}"'.encode(), fragment)
    return b"[" + b",".join([one] * 40) + b"]" if len(one) < 10_000 else b"[" + one + b"]"


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


class Innocent(threading.Thread):
    """Makes, reads, changes and deletes an object of its own, again and again."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._over = threading.Event()
        self.failures: list[tuple[str, int, bytes]] = []

    def run(self) -> None:
        rounds = 0
        try:
            while not self._over.is_set() or rounds < 3:
                self._act()
                rounds += 1
        except urllib3.exceptions.HTTPError as error:
            self.failures.append((f"round {rounds}", 0, str(error).encode()))

    def _act(self) -> None:
        one = f"{CONFIG_MAPS}/innocent"
        made = json.dumps(config_map("innocent")).encode()
        steps: tuple[tuple[str, str, bytes, str, int], ...] = (
            ("POST", CONFIG_MAPS, made, "application/json", 201),
            ("GET", one, b"", "", 200),
            ("PATCH", one, b'{"data":{"a":"c"}}', MERGE, 200),
            ("GET", "/openapi/v3", b"", "", 200),
            ("DELETE", one, b"", "", 200),
        )
        for method, path, body, kind, expected in steps:
            code, said = self._client(method, path, body, kind)
            if code != expected:
                self.failures.append((f"{method} {path}", code, said[:300]))

    def stop(self) -> None:
        self._over.set()
        self.join()


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


def test_no_body_makes_it_fail_or_keeps_others_waiting(home: Home, client: Client) -> None:
    innocent = Innocent(Client(home))
    innocent.start()
    try:
        _attack(client)
    finally:
        innocent.stop()
    assert not innocent.failures


def _attack(client: Client) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(
        where=st.sampled_from(PLACES),
        fragment=FRAGMENTS,
        verb=st.sampled_from(["add", "replace", "copy", "test"]),
    )
    def attack(where: tuple[str, Any, tuple[Any, ...]], fragment: bytes, verb: str) -> None:
        path, body, place = where
        text = spoiled(body, place, fragment)
        one = f"{path}/one"
        answers: dict[str, tuple[int, bytes]] = {"POST": client("POST", path, text)}
        if "kind" in body:
            answers["POST?Strict"] = client("POST", f"{path}?fieldValidation=Strict&dryRun=All", text)
            answers["YAML"] = client("POST", path, text, YAML)
            answers["GET"] = client("GET", one)
            answers["PUT"] = client("PUT", one, text)
            for kind in (MERGE, STRATEGIC):
                answers[kind] = client("PATCH", one, text, kind)
            answers["apply"] = client("PATCH", f"{one}?fieldManager=x&force=true", text, APPLY)
            answers[verb] = client("PATCH", one, operations(place, fragment, verb), JSON_PATCH)
            answers["list"] = client("GET", path)
            if path != CRDS:
                answers["DELETE"] = client("DELETE", one, text)
                client("DELETE", one)
        failed = {
            name: (code, said[:300])
            for name, (code, said) in answers.items()
            if code >= 500 and FORESEEN not in said
        }
        assert not failed, (path, place, fragment[:80])

    attack()


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


@pytest.mark.parametrize("levels", [300, 1_025, 10_000])
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


@pytest.mark.parametrize("owners", [1, [None], [{}], [ENTRY]])
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
