"""Checks that wait for one another: who looks again when one makes way."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.reconciler import Request
from crds import names
from reconcilers.nodecheck import claiming
from reconcilers.runtime.kinds import NODECHECKS
from tests.reconcilers.build import NOW
from tests.reconcilers.check_stage import Stage

ADMINISTRATORS = "ops"


class Line(Stage):
    """Checks that are looked at when the controller would, and end once they test their nodes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.looks: Counter[Request] = Counter()
        self.started: set[Request] = set()
        """Those whose agents have come."""
        self.tested: list[Request] = []
        self.reconciler.wake = partial(self.process.wake, "nodecheck")
        self.add_namespace(ADMINISTRATORS, **{names.LABEL_MAY_CORDON: "true"})

    def unfinished(self) -> list[Request]:
        checks = self.stores.store(NODECHECKS).list()
        return [_name(raw) for raw in checks if raw["status"].get("phase") not in ("Succeeded", "Failed")]

    def work_off(self) -> None:
        """Look at all that is to be looked at, once for each time that it was not waiting for that."""
        while (request := next(iter(self.process.woken("nodecheck")), None)) is not None:
            self.process.take("nodecheck", request)
            self.looks[request] += 1
            asyncio.run(self.process.reconcile("nodecheck", request))

    def let_one_end(self, choose: random.Random) -> None:
        """Agents come for one check, or one that tests its nodes ends."""
        beginning, testing = [], []
        for request in self.unfinished():
            raw = self.stores.store(NODECHECKS).get(*request)
            assert raw is not None
            if raw["status"].get("phase") == "Running":
                testing.append(request)
            elif raw["status"].get("nodes") and request not in self.started:
                beginning.append(request)
        if not testing and not beginning:
            assert self.process.woken("nodecheck"), f"they wait for nobody: {self.unfinished()}"
            return
        chosen = choose.choice(sorted(testing or beginning))
        with self.within(chosen.namespace or ""):
            if testing:
                self.tested.append(chosen)
                self.update(NODECHECKS, chosen.name, {"status": {"phase": "Succeeded"}})
            else:
                self.started.add(chosen)
                self.act(chosen.name)
                self.process.wake("nodecheck", chosen)


def _name(raw: dict[str, Any]) -> Request:
    return Request(raw["metadata"]["namespace"], raw["metadata"]["name"])


def line(checks: int, nodes: int = 1) -> Line:
    made = Line()
    made.add_nodes(*(f"n{i}" for i in range(nodes)))
    for i in range(checks):
        wanted = [f"n{(i + j) % nodes}" for j in range(min(2, nodes))]
        made.add_check(f"c{i:04}", created=NOW + timedelta(seconds=i), nodes=wanted)
    made.work_off()
    return made


def test_checks_of_one_node_test_it_in_order_with_a_few_looks_each() -> None:
    made = line(40)
    began = made.looks.total()
    for _ in range(80):
        made.let_one_end(random.Random(1))
        made.work_off()
    assert [each.name for each in made.tested] == [f"c{i:04}" for i in range(40)]
    assert made.looks.total() - began <= 12 * 40


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["default", "other", ADMINISTRATORS]),
            st.frozensets(st.integers(0, 3), min_size=1),
        ),
        min_size=1,
        max_size=14,
    ),
    st.integers(0, 2**32),
    st.sampled_from([1, 3, 32]),
)
def test_every_check_is_tested_though_only_those_look_that_others_made_way_for(
    wanted: list[tuple[str, frozenset[int]]], seed: int, oldest: int
) -> None:
    """Without the look that each takes after a while anyway."""
    choose = random.Random(seed)
    with patch.object(claiming, "MOST_WAITING", oldest):
        made = Line()
        made.add_nodes(*(f"n{i}" for i in range(4)))
        left = [*enumerate(wanted)]
        while left or made.unfinished():
            if left and choose.random() < 0.5:
                i, (namespace, nodes) = left.pop(0)
                with made.within(namespace):
                    created = NOW + timedelta(seconds=choose.randrange(20))
                    made.add_check(f"c{i}", created=created, nodes=sorted(f"n{each}" for each in nodes))
            elif (unfinished := made.unfinished()) and choose.random() < 0.1:
                gone = choose.choice(sorted(unfinished))
                with made.within(gone.namespace or ""):
                    made.remove(NODECHECKS, made.get(NODECHECKS, gone.name))
            elif unfinished:
                made.let_one_end(choose)
            if choose.random() < 0.7 or not left:
                made.work_off()
