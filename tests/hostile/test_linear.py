"""A look at the largest job that etcd takes: linear in what the user wrote, whatever that is.

A look is to take less than 50 ms. The limit of this test is far above what it takes on a busy machine, and far
below what anything quadratic takes: the reference without an end in a command of 1.3 MB took 75 minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from crds.elasticjob import ElasticJob
from crds.template import MAX_CONTAINERS, MAX_ITEMS, MAX_WORD
from tests.counting import cpu_seconds
from tests.hostile.looks import look_at_job, pods_of, wake
from tests.hostile.strategies import defaulted, is_taken, metadata

JSON = dict[str, Any]
BYTES = 1_400_000
MOST_SECONDS = 2.0


def words(text: str) -> list[str]:
    """As many copies of a text as there is room for, in words that the CRD takes."""
    return [(text * (MAX_WORD // len(text)))[:MAX_WORD] for _ in range(BYTES // MAX_WORD)]


def container(**more: Any) -> JSON:
    return {"name": "main", "image": "x", **more}


def of_first(**more: Any) -> JSON:
    return {"spec": {"containers": [container(**more)]}}


def variables(count: int, value: str) -> list[JSON]:
    return [{"name": f"V{number}", "value": value} for number in range(count)]


def beside(**more: Any) -> JSON:
    return {"spec": {"containers": [container()], **more}}


TEMPLATES: dict[str, Callable[[], JSON]] = {
    "references without an end": lambda: of_first(command=["dlrover-run", *words("${a:-")]),
    "a range without an end": lambda: of_first(command=["torchrun", "--nnodes=" + "${a:-" * 20_000]),
    "references": lambda: of_first(command=words("$V0 "), env=variables(1, "x" * 1_000)),
    "a long value, named often": lambda: of_first(
        command=["dlrover-run", *words("$V0")[:5]], env=variables(5, "$V0" * 40_000)
    ),
    "one word of a shell": lambda: of_first(
        command=["sh", "-c", "dlrover-run " + "x" * 120_000, *words("x")[:9]]
    ),
    "a quote without its end": lambda: of_first(command=["sh", "-c", "dlrover-run '" + "x " * 60_000]),
    "backticks": lambda: of_first(command=["sh", "-c", "dlrover-run " + "`" * 120_000]),
    "substitutions": lambda: of_first(command=["sh", "-c", "dlrover-run " + "$((" * 40_000]),
    "comments": lambda: of_first(command=["sh", "-c", " #" * 60_000, *words(" #")[:9]]),
    "continued lines": lambda: of_first(command=["sh", "-c", *words("\\\n")[:4]]),
    "flags": lambda: of_first(args=["dlrover-run", *["--network-check=true"] * (MAX_ITEMS - 1)]),
    "ranges": lambda: of_first(command=words("--nnodes=1:2 ")),
    "spaces": lambda: of_first(command=words("--nnodes" + " " * 9_000)),
    "short arguments": lambda: of_first(args=["$V0"] * MAX_ITEMS, env=variables(1, "y" * 100_000)),
    "variables": lambda: of_first(env=variables(MAX_ITEMS, "$V0" * 60)),
    "containers": lambda: {
        "spec": {
            "containers": [
                container(
                    name=f"c{number}",
                    env=variables(100, "x" * 80),
                    resources={"limits": {f"a/{name}": "9" * 60 for name in range(32)}},
                )
                for number in range(MAX_CONTAINERS)
            ]
        }
    },
    "init containers": lambda: beside(
        initContainers=[container(name=f"c{n}", env=variables(200, "x" * 60)) for n in range(MAX_CONTAINERS)]
    ),
    "tolerations": lambda: beside(tolerations=[{"key": "k" * 300, "operator": "Exists"}] * MAX_ITEMS),
    "node selector terms": lambda: beside(
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "k" * 250, "operator": "Exists"}]}]
                    * MAX_ITEMS
                }
            }
        }
    ),
    "annotations": lambda: {
        "metadata": {"annotations": {f"a/{number}": "x" * 300 for number in range(MAX_ITEMS)}},
        **beside(),
    },
    "small dictionaries": lambda: beside(more=[{} for _ in range(BYTES // 4)]),
    "nested": lambda: beside(more=_nested(200)),
}


def _nested(levels: int) -> Any:
    value: Any = ["x" * (BYTES // 2)]
    for _ in range(levels):
        value = {"a": value}
    return value


def job_of(template: JSON, **spec: Any) -> JSON:
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": metadata("bad"),
        "spec": {"replicaSpecs": {"worker": {"replicas": 2, "template": template}}} | spec,
    }


def check(raw: JSON) -> None:
    raw = defaulted("ElasticJob", raw)
    assert len(orjson.dumps(raw)) < 1_500_000
    assert is_taken("ElasticJob", raw)

    def all_of_a_look() -> None:
        job = ElasticJob.model_validate(raw)
        wake("ElasticJob", raw)
        look_at_job(job, raw)
        pods_of(job, raw)

    seconds = cpu_seconds(all_of_a_look, times=2)
    print(f"{seconds * 1e3:.0f} ms")
    assert seconds < MOST_SECONDS


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_largest_template_costs_little(name: str) -> None:
    check(job_of(TEMPLATES[name]()))


def test_as_many_variables_of_the_job_as_it_may_have_cost_little() -> None:
    check(
        job_of(
            of_first(env=variables(MAX_ITEMS, "x" * 100)), envs={f"E{n}": "y" * 100 for n in range(MAX_ITEMS)}
        )
    )
