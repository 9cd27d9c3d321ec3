"""The lists of a NodeCheck's status that have no room for a name an entry: the rest are ranges.

A list names MOST_NAMED nodes; the others of it are in `furtherNodes`, by their places in `nodes`, and the
failed tests that have no message in the `furtherTests` of their round. So what a check finds takes a few
kilobytes, however much of it there is. Only what is stored is so: a reader of a check (`unfolded`; the
models do it themselves) sees whole lists. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from crds.findings import DROPPED, Cause, dropped
from crds.ranges import from_text, to_text

JSON = dict[str, Any]

MOST_NAMED = 250
FURTHER_NODES, FURTHER_TESTS = "furtherNodes", "furtherTests"
NAME_LISTS = ("faultyNodes", "stragglers", "inconclusive")


def folded(status: JSON) -> JSON:
    """A status in its wire form, with lists as they are stored."""
    places = {node: place for place, node in enumerate(status["nodes"])}
    short, further = dict(status), dict[str, str]()

    def fold(field: str, key: str, entry_of: Callable[[str], Any]) -> None:
        """Take out of the list, but for its first entries, those that say no more than `entry_of` a node."""
        first, rest = short[field][:MOST_NAMED], short[field][MOST_NAMED:]
        gone = [node for entry in rest if (node := _node(entry)) in places and entry == entry_of(node)]
        if gone:
            further[key] = to_text(sorted(places[node] for node in gone))
            without = {*gone}
            short[field] = [*first, *(entry for entry in rest if _node(entry) not in without)]

    for field in NAME_LISTS:
        fold(field, field, lambda node: node)
    fold("withdrawn", "withdrawn", lambda node: {"node": node})
    for cause in DROPPED:
        fold("nodeResults", cause.value, partial(_dropped, cause))
    short[FURTHER_NODES] = further
    short["rounds"] = [_folded_round(done) for done in status["rounds"]]
    return short


def unfolded(status: Mapping[str, Any]) -> JSON:
    """A stored status with whole lists, those that had no room for a name in rank order.

    Raises:
        ValueError: it has ranges that are none, or of places that it has not.
    """
    full, further = dict(status), status.get(FURTHER_NODES) or {}
    nodes = status.get("nodes") or []
    for key, text in further.items():
        rest = _named(text, nodes)
        if key in NAME_LISTS:
            full[key] = [*(full.get(key) or ()), *rest]
        elif key == "withdrawn":
            full[key] = [*(full.get(key) or ()), *({"node": node} for node in rest)]
        elif key in DROPPED:
            found = (_dropped(Cause(key), node) for node in rest)
            full["nodeResults"] = [*(full.get("nodeResults") or ()), *found]
    full.pop(FURTHER_NODES, None)
    if "rounds" in full:
        full["rounds"] = [_unfolded_round(done) for done in full["rounds"]]
    return full


def has_further(status: Mapping[str, Any]) -> bool:
    """Whether a status is stored with ranges instead of some names."""
    rounds = status.get("rounds") or ()
    stored = (done for done in rounds if isinstance(done, dict))
    return bool(status.get(FURTHER_NODES)) or any(done.get(FURTHER_TESTS) for done in stored)


def whole(check: JSON) -> JSON:
    """A stored NodeCheck with whole lists."""
    status = check.get("status") or {}
    return check | {"status": unfolded(status)} if has_further(status) else check


def _node(entry: Any) -> str:
    return entry if isinstance(entry, str) else str(entry["node"])


def _dropped(cause: Cause, node: str) -> JSON:
    return dropped(node, cause).to_wire()


def _named(text: str, nodes: Sequence[str]) -> list[str]:
    places = from_text(text)
    if places and places[-1] >= len(nodes):
        raise ValueError(f"place {places[-1]} is none of {len(nodes)} nodes")
    return [nodes[place] for place in places]


def _folded_round(done: JSON) -> JSON:
    rest = [test for test in done.get("failed") or () if "message" not in test]
    if len(rest) <= MOST_NAMED:
        return done
    further = {
        "failed": [test["test"] for test in rest],
        "silent": _members_in(rest, "silent"),
        "crashed": _members_in(rest, "crashed"),
    }
    reported = [test for test in done["failed"] if "message" in test]
    ranges = {key: to_text(found) for key, found in further.items() if found}
    return done | {"failed": reported, FURTHER_TESTS: ranges}


def _members_in(tests: Iterable[Mapping[str, Any]], field: str) -> list[int]:
    return sorted({place for test in tests for place in test.get(field) or ()})


def _unfolded_round(done: JSON) -> JSON:
    further = done.get(FURTHER_TESTS) or {}
    if not further:
        return done
    members = done["tests"]
    rest = from_text(further.get("failed", ""))
    if rest and rest[-1] >= len(members):
        raise ValueError(f"test {rest[-1]} is none of {len(members)} of round {done.get('number')}")
    special = {key: {*from_text(further.get(key, ""))} for key in ("silent", "crashed")}
    tests = [
        {"test": test} | {key: [p for p in members[test] if p in places] for key, places in special.items()}
        for test in rest
    ]
    rest_of_it = {key: value for key, value in done.items() if key != FURTHER_TESTS}
    return rest_of_it | {
        "failed": sorted([*(done.get("failed") or ()), *tests], key=lambda test: test["test"])
    }
