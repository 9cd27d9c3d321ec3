"""Objects that the API server takes and nobody would write, drawn from the CRDs' own schemas."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

import crds
from crds.failure_policy import MAX_PATTERN
from localcluster.builtin import components
from localcluster.schema import CompiledSchema

JSON = dict[str, Any]
SCHEMAS = {
    each["spec"]["names"]["kind"]: each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for each in crds.manifests()
}
AGENT_SCHEMA = SCHEMAS["ElasticWorker"]["properties"]["status"]["properties"]["agent"]

TIMES = (
    "2026-01-01T12:00:00Z",
    "1970-01-01T00:00:00.000001Z",
    "2999-12-31T23:59:59.999999999+14:00",
    "2026-02-30T12:00:00Z",
    "2026-01-01T00:00:00-14:59",
    # What strfmt.IsDateTime takes (kube-openapi, pkg/validation/strfmt/time.go) and Python does not
    "2026-01-01T00:00:00+99:99",
    "0000-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "2026-01-01T00:00:00Zt x",
    "2026-01-01T00:00:00x5Z",
)
TEXTS = (
    "",
    "${a:-" * 50,
    "$A" * 100,
    "$(A)" * 50,
    "`" * 41,
    "--nnodes=" + "9" * 5_000 + ":" + "9" * 5_000,
    "--nnodes=2:9999999999999999999999",
    "dlrover-run '" + "x" * 300,
    "dlrover-run --nnodes=$A:${B:-" + "$A" * 40,
    "bash",
    "-c",
    "#" * 99,
    "\x00\x1b[31m",
    "‮Größe\u2028\U0001f600",
    "1e99",
    "-0",
    ".",
    "9" * 64,
    "Infinity",
    "NaN",
    "z",
    "z!!!!",
    "zeJwDAAAAAAE=",
    "0-99999",
    "0-41,43",
    "5-1",
    "٣-٤",
    "Xid 79 " * 20,
    "\n\n\n",
    "a" * 3_000,
)
NAMES = ("TF_CONFIG", "NODE_NUM", "PET_NNODES", "A", "B", "memory", "cpu", "nvidia.com/gpu", "", "x" * 300)

_PIECES = (
    "Xid ",
    *[
        r"a",
        r"k",
        r".",
        r"\w",
        r"\W",
        r"\C",
        r"\b",
        r"^",
        r"$",
        r"[^a]",
        r"[a-zé-ſ]",
        r"[\x{80}-\x{ffff}]",
        r"é",
    ],
)
_TIMES = ("?", "*", "+", "*?", "??", "{2}", "{0,9}", "{31}", "{99}", "{50,99}", "{3,}")
PATTERNS = st.builds(
    "{}{}".format,
    st.sampled_from(("", "(?i)", "(?s)")),
    st.recursive(
        st.sampled_from(_PIECES),
        lambda inner: (
            st.builds("{}{}".format, inner, inner)
            | st.builds("(?:{}|{})".format, inner, inner)
            | st.builds("(?:{}){}".format, inner, st.sampled_from(_TIMES))
            | st.builds(
                lambda piece, times: (piece * times)[: 200 // len(piece) * len(piece)],
                inner,
                st.integers(2, 60),
            )
        ),
        max_leaves=12,
    ),
).filter(lambda pattern: len(pattern) <= MAX_PATTERN)
"""Patterns of failure rules, many of which compile to thousands of instructions."""

_ANY_TEXT = st.sampled_from(TEXTS) | st.text(max_size=20)
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_ANY_TEXT, inner, max_size=3),
    max_leaves=5,
)


def nested(levels: int) -> Any:
    """Lists in dictionaries, so deep: Kubernetes stores 10,000 levels."""
    value: Any = "deep"
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


DEEP = st.sampled_from((100, 240, 300, 1_000, 1_100, 9_990)).map(nested)


def of_schema(schema: JSON, *, optional: float = 0.25) -> st.SearchStrategy[Any]:
    """Values that satisfy a structural schema, but for its rules.

    Args:
        optional: how likely a field is that may be missing.
    """
    value = _of_kind(schema, optional)
    return st.none() | value if schema.get("nullable") else value


def _of_kind(schema: JSON, optional: float) -> st.SearchStrategy[Any]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return st.integers(-(2**63), 2**63 - 1) | _texts(schema)
    drawn: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "object": lambda: _objects(schema, optional),
        "array": lambda: st.lists(
            of_schema(schema["items"], optional=optional),
            min_size=schema.get("minItems", 0),
            max_size=min(schema.get("maxItems", 4), max(3, schema.get("minItems", 0))),
        ),
        "string": lambda: _texts(schema),
        "integer": lambda: _integers(schema),
        "number": lambda: _numbers(schema),
        "boolean": st.booleans,
    }
    return drawn[schema["type"]]()


def _objects(schema: JSON, optional: float) -> st.SearchStrategy[JSON]:
    properties, required = schema.get("properties", {}), schema.get("required", ())
    more: st.SearchStrategy[JSON] = st.just({})
    if "additionalProperties" in schema:
        values = of_schema(schema["additionalProperties"], optional=optional)
        more = st.dictionaries(
            st.sampled_from(NAMES), values, max_size=min(schema.get("maxProperties", 4), 4)
        )
    elif schema.get("x-kubernetes-preserve-unknown-fields"):
        more = st.dictionaries(st.sampled_from(NAMES), JUNK, max_size=2)
    known = {name: of_schema(value, optional=optional) for name, value in properties.items()}

    @st.composite
    def drawn(draw: st.DrawFn) -> JSON:
        found = dict(draw(more))
        for name, strategy in known.items():
            if name in required or draw(st.floats(0, 1)) < optional:
                found[name] = draw(strategy)
        return found

    return drawn()


def _texts(schema: JSON) -> st.SearchStrategy[str]:
    least, most = schema.get("minLength", 0), schema.get("maxLength", 100_000)
    if schema.get("x-kubernetes-validations", [{}])[0].get("rule", "").startswith("''.matches(self)"):
        return PATTERNS
    if schema.get("format") == "date-time":
        found = [time for time in (*[TIMES[0]] * 12, *TIMES) if re.search(schema.get("pattern", ""), time)]
        return st.sampled_from(found)
    if "pattern" in schema:
        regex = re.compile(schema["pattern"])
        known = [text for text in TEXTS if regex.search(text) and least <= len(text) <= most]
        drawn = st.from_regex(regex, alphabet=st.characters(codec="ascii")).filter(
            lambda text: least <= len(text) <= most and "\n" not in text
        )
        return st.sampled_from(known) | drawn if known else drawn
    known = [text for text in TEXTS if least <= len(text) <= most]
    return st.sampled_from(known) | st.text(min_size=least, max_size=min(most, max(least, 10)))


def _integers(schema: JSON) -> st.SearchStrategy[int]:
    least, most = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
    least, most = least + schema.get("exclusiveMinimum", False), most - schema.get("exclusiveMaximum", False)
    near = {number for number in (least, most, 0, 1, 2, 3) if least <= number <= most}
    return (
        st.sampled_from(sorted(near)) | st.integers(least, min(most, least + 10)) | st.integers(least, most)
    )


def _numbers(schema: JSON) -> st.SearchStrategy[float]:
    least, most = schema.get("minimum", -1.7e308), schema.get("maximum", 1.7e308)
    return st.floats(
        least,
        most,
        exclude_min=schema.get("exclusiveMinimum", False),
        exclude_max=schema.get("exclusiveMaximum", False),
    )


_SCHEMA = {kind: CompiledSchema(schema, components(), custom=True) for kind, schema in SCHEMAS.items()}


def defaulted(kind: str, obj: JSON) -> JSON:
    """An object with its CRD's defaults, as the API server stores it."""
    return _SCHEMA[kind].default(obj)


def is_taken(kind: str, obj: JSON) -> bool:
    """Whether the API server takes an object, by its schema and by its rules."""
    return not _SCHEMA[kind].validate(obj)


def metadata(name: str, namespace: str = "team-b", **more: Any) -> JSON:
    known = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "1"}
    times = {"generation": 1, "creationTimestamp": "2026-01-01T11:00:00Z"}
    return known | times | more


MOST_REPLICAS = 40
"""That are drawn: what ten thousand cost is the business of other tests."""


def _by_the_rules(spec: JSON) -> JSON:
    """The spec of an ElasticJob, changed where the rules of the CRD would refuse what the schema takes."""
    specs, policy = spec["replicaSpecs"], spec.get("elasticPolicy") or {}
    for each in specs.values():
        each["replicas"] = min(each.get("replicas", 1), MOST_REPLICAS)
        if "minReplicas" in each:
            each["minReplicas"] = max(1, min(each["minReplicas"], each["replicas"]))
            each["replicas"] = max(each["replicas"], 1)
        if "maxReplicas" in each:
            each["maxReplicas"] = max(each["maxReplicas"], each["replicas"])
    for type_ in specs.keys() - {"worker"}:
        specs[type_].pop("standby", None)
        specs[type_].pop("memoryCheckpoint", None)
    serves = specs.get("ps", {}).get("replicas", 0) > 0
    if not serves:
        specs.pop("chief", None)
    if "worker" not in specs:
        first = next(iter(specs.values()), {"replicas": 1})
        specs["worker"] = {key: first[key] for key in ("replicas", "template") if key in first}
    worker = specs["worker"]
    worker.setdefault("template", {"spec": {"containers": [{"name": "main", "image": "x"}]}})
    policy["nodeUnit"] = 1
    spec.pop("managedBy", None)
    if serves:
        specs["ps"]["template"]["spec"]["containers"][0]["command"] = ["serve"]
        specs.get("chief", {})["replicas"] = 1
        worker.pop("standby", None)
        worker.pop("memoryCheckpoint", None)
        spec.get("nodeCheck", {})["enabled"] = False
        policy.pop("opportunistic", None)
    if "opportunistic" in policy:
        policy.pop("shardScaling", None)
        worker.update(maxReplicas=worker["replicas"] + 20, autoScale=True, standby=0)
        spec["optimizeMode"] = "cluster"
    spec["elasticPolicy"] = policy
    return spec


def api_objects(kind: str, name: str) -> st.SearchStrategy[JSON]:
    """What an account that may write this kind can store: a spec, labels and annotations."""
    spec = of_schema(SCHEMAS[kind]["properties"]["spec"])
    spec = spec.map(_by_the_rules) if kind == "ElasticJob" else spec
    texts = st.dictionaries(st.sampled_from((*NAMES, "elastic.iml.github.io/profile")), _ANY_TEXT, max_size=2)

    def stored(drawn: tuple[JSON, JSON, JSON]) -> JSON:
        given, labels, annotations = drawn
        obj = {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": kind, "spec": given}
        obj["metadata"] = metadata(name, labels=labels, annotations=annotations)
        return defaulted(kind, obj)

    shallow = st.tuples(spec, texts, texts).map(stored).filter(lambda obj: is_taken(kind, obj))
    depth = st.integers(0, 9).flatmap(lambda chance: st.just(None) if chance else DEEP)
    return st.builds(_with_depth, shallow, depth)


def _with_depth(obj: JSON, deep: Any) -> JSON:
    """The object with something deep wherever its schema takes anything."""
    if deep is None:
        return obj
    spec = obj["spec"]
    templates = [each["template"] for each in spec.get("replicaSpecs", {}).values() if "template" in each]
    for template in (*templates, *filter(None, [spec.get("template")])):
        template["more"] = template["spec"]["more"] = deep
        template["spec"]["containers"][0]["env"] = [{"name": "A", "valueFrom": {"b": deep}}]
    for pod in (*spec.get("createPods", ()), *spec.get("migratePods", ())):
        pod["resource"] = {"cpu": deep}
    if "replicaSpecs" in spec:
        spec["envs"] = {"A": deep}
    return obj


REPORTS = of_schema(AGENT_SCHEMA, optional=0.4)
"""`status.agent`, as a worker's token may write it."""
