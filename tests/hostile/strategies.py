"""Objects that the API server takes and nobody would write, drawn from the CRDs' own schemas."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
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

ODD = [*map(chr, range(128)), *"äßǅ٣中‮\u2028\ufeff\U0001f600"]
"""Characters of which texts are made."""


def _any_text(dice: Random, least: int = 0, most: int = 20) -> str:
    return "".join(dice.choices(ODD, k=dice.randint(least, most)))


def _text_or_known(dice: Random) -> str:
    return dice.choice(TEXTS) if dice.random() < 0.5 else _any_text(dice)


def _junk(dice: Random, levels: int = 3) -> Any:
    """Anything that JSON has."""
    match dice.randrange(7 if levels else 5):
        case 0:
            return dice.choice((None, True, False))
        case 1:
            return dice.choice((0, -1, dice.randint(-(2**63), 2**63 - 1)))
        case 2:
            return dice.choice((0.0, -0.0, 5e-324, 1.7e308, dice.uniform(-1e6, 1e6)))
        case 3 | 4:
            return _text_or_known(dice)
        case 5:
            return [_junk(dice, levels - 1) for _ in range(dice.randint(0, 3))]
        case _:
            return {_text_or_known(dice): _junk(dice, levels - 1) for _ in range(dice.randint(0, 3))}


def nested(levels: int) -> Any:
    """Lists in dictionaries, so deep: Kubernetes stores 10,000 levels."""
    value: Any = "deep"
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


DEEP = st.sampled_from((100, 240, 300, 1_000, 1_100, 9_990)).map(nested)


Drawer = Callable[[Random, st.DrawFn], Any]
"""How a value is drawn: by dice, and by Hypothesis where a text follows a pattern. Hypothesis alone takes 20 times as long."""


def of_schema(schema: JSON, *, optional: float = 0.25) -> st.SearchStrategy[Any]:
    """Values that satisfy a structural schema, but for its rules.

    Args:
        optional: how likely a field is that may be missing.
    """
    value = _drawer(schema, optional)

    @st.composite
    def drawn(draw: st.DrawFn) -> Any:
        return value(draw(st.randoms(use_true_random=True)), draw)

    return drawn()


def _drawer(schema: JSON, optional: float) -> Drawer:
    value = _of_kind(schema, optional)
    if not schema.get("nullable"):
        return value
    return lambda dice, draw: value(dice, draw) if dice.random() < 0.5 else None


def _of_kind(schema: JSON, optional: float) -> Drawer:
    if "enum" in schema:
        return lambda dice, _: dice.choice(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        text = _texts(schema)
        return lambda dice, draw: (
            text(dice, draw) if dice.random() < 0.5 else dice.randint(-(2**63), 2**63 - 1)
        )
    drawn: dict[str, Callable[[], Drawer]] = {
        "object": lambda: _objects(schema, optional),
        "array": lambda: _lists(schema, optional),
        "string": lambda: _texts(schema),
        "integer": lambda: _integers(schema),
        "number": lambda: _numbers(schema),
        "boolean": lambda: lambda dice, _: dice.random() < 0.5,
    }
    return drawn[schema["type"]]()


def _lists(schema: JSON, optional: float) -> Drawer:
    item, least = _drawer(schema["items"], optional), schema.get("minItems", 0)
    most = min(schema.get("maxItems", 4), max(3, least))
    return lambda dice, draw: [item(dice, draw) for _ in range(dice.randint(least, most))]


def _objects(schema: JSON, optional: float) -> Drawer:
    properties, required = schema.get("properties", {}), schema.get("required", ())
    values, most = None, 0
    if "additionalProperties" in schema:
        values = _drawer(schema["additionalProperties"], optional)
        most = min(schema.get("maxProperties", 4), 4)
    elif schema.get("x-kubernetes-preserve-unknown-fields"):
        values, most = (lambda dice, _: _junk(dice)), 2
    known = {name: _drawer(value, optional) for name, value in properties.items()}

    def drawn(dice: Random, draw: st.DrawFn) -> JSON:
        found = {}
        if values:
            found = {dice.choice(NAMES): values(dice, draw) for _ in range(dice.randint(0, most))}
        for name, value in known.items():
            if name in required or dice.random() < optional:
                found[name] = value(dice, draw)
        return found

    return drawn


def _texts(schema: JSON) -> Drawer:
    least, most = schema.get("minLength", 0), schema.get("maxLength", 100_000)
    if schema.get("x-kubernetes-validations", [{}])[0].get("rule", "").startswith("''.matches(self)"):
        return lambda _, draw: draw(PATTERNS)
    if schema.get("format") == "date-time":
        found = [time for time in (*[TIMES[0]] * 12, *TIMES) if re.search(schema.get("pattern", ""), time)]
        return lambda dice, _: dice.choice(found)
    known = [text for text in TEXTS if least <= len(text) <= most]
    if "pattern" in schema:
        regex = re.compile(schema["pattern"])
        known = [text for text in known if regex.search(text)]
        drawn = st.from_regex(regex, alphabet=st.characters(codec="ascii")).filter(
            lambda text: least <= len(text) <= most and "\n" not in text
        )
        return lambda dice, draw: dice.choice(known) if known and dice.random() < 0.8 else draw(drawn)
    return lambda dice, _: (
        dice.choice(known) if dice.random() < 0.5 else _any_text(dice, least, min(most, max(least, 10)))
    )


def _integers(schema: JSON) -> Drawer:
    least, most = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
    least, most = least + schema.get("exclusiveMinimum", False), most - schema.get("exclusiveMaximum", False)
    near = sorted({number for number in (least, most, 0, 1, 2, 3) if least <= number <= most})

    def drawn(dice: Random, _: st.DrawFn) -> int:
        return dice.choice(
            (dice.choice(near), dice.randint(least, min(most, least + 10)), dice.randint(least, most))
        )

    return drawn


def _numbers(schema: JSON) -> Drawer:
    least, most = schema.get("minimum", -1.7e308), schema.get("maximum", 1.7e308)
    return lambda _, draw: draw(
        st.floats(
            least,
            most,
            exclude_min=schema.get("exclusiveMinimum", False),
            exclude_max=schema.get("exclusiveMaximum", False),
        )
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
    names = (*NAMES, "elastic.iml.github.io/profile")

    def texts(dice: Random) -> dict[str, str]:
        return {dice.choice(names): _text_or_known(dice) for _ in range(dice.randint(0, 2))}

    def stored(given: JSON, dice: Random) -> JSON:
        obj = {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": kind, "spec": given}
        obj["metadata"] = metadata(name, labels=texts(dice), annotations=texts(dice))
        return defaulted(kind, obj)

    dice = st.randoms(use_true_random=True)
    shallow = st.builds(stored, spec, dice).filter(lambda obj: is_taken(kind, obj))
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
