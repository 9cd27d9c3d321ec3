"""What /metrics shows is what docs/metrics.md, docs/runbook.md, the dashboard and the alerts speak of."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import deploy
from controller.manager import Manager, ManagerOptions
from crds.job_spec import ElasticPolicy
from deploy.kustomize import render
from reconcilers.roles.conditions import TABLE
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, SHARDSETS
from reconcilers.setup import add_all
from tests.controller.fake_api import memory_api
from tests.reconcilers.test_job_metrics import FORMED, agent, running_job, worker

FOLDER = Path(deploy.__file__).parent / "metrics"
KUBECTL = Path(sys.executable).with_name("kubectl")
DOCS = FOLDER.parents[1] / "docs" / "metrics.md"
RUNBOOK = DOCS.with_name("runbook.md")

UPSTREAM = ("controller_runtime_", "workqueue_", "rest_client_", "leader_election_", "process_")
"""Names that are not ours to choose."""
LABELS = frozenset(
    (
        *("namespace", "job_name", "worker", "phase", "state", "class", "type", "tier", "set", "number"),
        *("controller", "result", "name", "code", "method", "host", "resource"),
    )
)
"""Each bounded: by the objects that exist, by an enum, or by 16 shard sets and 8 numbers a job."""
FROM_THE_SCRAPE = {"instance", "le"}


@dataclass(frozen=True)
class Shown:
    """One metric, as it is scraped."""

    name: str
    type: str
    text: str
    labels: frozenset[str]

    @property
    def sample_names(self) -> set[str]:
        suffixes = ("_bucket", "_sum", "_count") if self.type == "histogram" else ("",)
        return {self.name + suffix for suffix in suffixes}


@pytest.fixture(scope="module")
def scraped() -> str:
    """Of a manager with all controllers, a job and a worker of which everything is known."""

    async def read() -> str:
        async with memory_api() as (_, client):
            manager = Manager(client, ManagerOptions(leader_election=False))
            add_all(manager)
            for observe in client.observers:
                observe("GET", 200)
            resumed = FORMED | {"resume": {"step": 60, "tier": "memory"}}
            point = {"step": 70, "time": "2026-01-01T12:00:00Z", "worldSize": 16, "secondsPerStep": 0.1}
            reported = agent(
                0,
                memory={"step": 70, "replicatedStep": 69},
                rounds=[{"round": FORMED["round"], "firstStep": 1, "lastStep": 70}],
                series={"latest": point | {"numbers": {"loss": 2.5}}},
            )
            warnings = [
                {"type": kind.type, "message": "…", "since": point["time"]} for kind in TABLE.warnings
            ]
            job = running_job(rendezvous=resumed, warnings=warnings)
            elastic = {"elastic_policy": ElasticPolicy.model_validate({"replicaGroups": {"workers": 1}})}
            whole = job.model_copy(
                update={
                    "metadata": job.metadata.model_copy(update={"name": "whole", "uid": "whole"}),
                    "spec": job.spec.model_copy(update=elastic),
                }
            )
            for resource, model in (
                (ELASTICJOBS, job),
                (ELASTICJOBS, whole),
                (ELASTICWORKERS, worker(0, agent=reported, restarts={"OOM": 1})),
            ):
                raw = model.model_dump(mode="json", by_alias=True, exclude_none=True)
                raw["metadata"]["creationTimestamp"] = "2026-01-01T11:00:00Z"
                manager.cache.store(resource).apply(raw)
            metadata = {"name": "digits-shards-0", "namespace": "default", "uid": "s", "resourceVersion": "1"}
            spec = {"jobName": "digits", "setName": "files"}
            files = {"metadata": metadata, "spec": spec, "status": {"size": 3, "waiting": 3}}
            manager.cache.store(SHARDSETS).apply(files)
            return generate_latest(manager.metrics_registry).decode()

    return asyncio.run(read())


@pytest.fixture(scope="module")
def shown(scraped: str) -> dict[str, Shown]:
    """By the name under which it is asked for, which for a histogram is that of each of its parts."""
    found = {}
    for family in text_string_to_metric_families(scraped):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = family.name + ("_total" if family.type == "counter" else "")
        metric = Shown(name, family.type, family.documentation, frozenset(labels))
        found |= dict.fromkeys(metric.sample_names, metric)
    return found


def metrics(shown: dict[str, Shown]) -> list[Shown]:
    return sorted(set(shown.values()), key=lambda metric: metric.name)


def test_every_metric_has_a_type_and_a_help_and_samples(scraped: str, shown: dict[str, Shown]) -> None:
    for metric in metrics(shown):
        assert metric.type in ("counter", "gauge", "histogram"), metric
        assert metric.text.strip(), metric
    for keyword in ("HELP", "TYPE"):
        told = re.findall(rf"^# {keyword} (\S+)", scraped, re.MULTILINE)
        assert len(told) == len(set(told)), f"twice the same # {keyword}"
        assert set(told) == {metric.name for metric in metrics(shown)}, "none without samples"


def test_labels_are_bounded_and_not_part_of_the_name(shown: dict[str, Shown]) -> None:
    for metric in metrics(shown):
        assert metric.labels <= LABELS, metric
        if not metric.name.startswith(UPSTREAM):
            assert not any(f"_by_{label}" in metric.name for label in metric.labels), metric


def test_docs_list_every_metric_with_its_type_and_labels(shown: dict[str, Shown]) -> None:
    common = {"dlr_job": {"namespace", "job_name"}, "dlr_worker": {"namespace", "job_name", "worker"}}
    documented = {
        name: (
            kind,
            frozenset(filter(None, labels.split(", "))) | common.get("_".join(name.split("_")[:2]), set()),
        )
        for name, kind, labels in re.findall(
            r"^\| `(\w+)` \| (gauge|counter|histogram) \| ([\w, ]*?) ?\|", DOCS.read_text(), re.MULTILINE
        )
    }
    assert documented == {metric.name: (metric.type, metric.labels) for metric in metrics(shown)}


# What asks for them.


def queries(tree: Any, key: str) -> Iterator[str]:
    if isinstance(tree, dict):
        for name, value in tree.items():
            if name == key and isinstance(value, str):
                yield value
            else:
                yield from queries(value, key)
    elif isinstance(tree, list):
        for item in tree:
            yield from queries(item, key)


def rules() -> list[dict[str, Any]]:
    spec = yaml.safe_load((FOLDER / "prometheusrule.yaml").read_text())["spec"]
    return [rule for group in spec["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    return found


@dataclass(frozen=True)
class Asked:
    metrics: frozenset[str]
    labels: frozenset[str]


def asked(query: str) -> Asked:
    """The metrics and labels that a PromQL expression names."""
    query = re.sub(r'"[^"]*"', '""', query)
    labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"\"", query))
    query = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", query)
    for words in re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", query):
        labels |= set(re.findall(r"\w+", words))
    query = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", query)
    query = re.sub(r"\boffset\s+\w+", "", query)
    names = set(re.findall(r"(?<![\w.])[a-zA-Z_]\w*(?!\s*\(|\w)", query)) - {"and", "or", "unless", "bool"}
    return Asked(frozenset(names), frozenset(labels))


ALERTS = [(rule["alert"], rule["expr"]) for rule in rules()]
PANELS = [("dashboard", query) for query in queries(dashboard()["panels"], "expr")]
EXAMPLES = [
    ("docs", line.strip())
    for line in DOCS.read_text().partition("## Useful queries")[2].splitlines()
    if line.startswith("    ") and not line.lstrip().startswith("#")
]


def test_queries_ask_for_metrics_and_labels_that_exist(shown: dict[str, Shown]) -> None:
    for _, query in (*ALERTS, *PANELS, *EXAMPLES):
        wanted = asked(query)
        assert wanted.metrics and wanted.metrics <= shown.keys(), query
        known = {label for name in wanted.metrics for label in shown[name].labels} | FROM_THE_SCRAPE
        assert wanted.labels <= known, query
        for name in wanted.metrics:
            counts = shown[name].type != "gauge"
            rated = re.search(rf"(?:rate|increase)\([^()]*\b{name}\b", query) is not None
            assert rated <= counts, f"{name} is no counter: {query}"


def test_every_metric_of_ours_is_on_the_dashboard(shown: dict[str, Shown]) -> None:
    on_it = {name for _, query in PANELS for name in asked(query).metrics}
    ours = {metric.name for metric in metrics(shown) if metric.name.startswith("dlr_")}
    # Its phases are what the panels of workers wanted and in the world show in other words.
    assert ours - on_it <= {"dlr_job_workers", "dlr_job_world_size"}


def test_alerts_say_what_is_the_matter_and_are_documented(shown: dict[str, Shown]) -> None:
    documented = re.findall(r"^\| (Dlr\w+) \| (critical|warning|info) \|", RUNBOOK.read_text(), re.MULTILINE)
    assert sorted(documented) == sorted((rule["alert"], rule["labels"]["severity"]) for rule in rules())
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["annotations"].keys() == {"summary", "description"}
        wanted = asked(rule["expr"])
        kept = {label for name in wanted.metrics for label in shown[name].labels}
        if re.match(r"\s*(?:sum|max|avg|absent)\b", rule["expr"]):
            kept &= wanted.labels
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= kept


def test_alerts_that_look_back_do_so_by_job_and_over_gaps() -> None:
    """After a failover the series come from another instance: compared by that, all old failures were new."""
    backward = [(where, query) for where, query in ALERTS if "offset" in query]
    assert len(backward) == 3
    for where, query in backward:
        assert query.count("offset") == query.count("[15m] offset 1h") == query.count("max_over_time("), where
        by_job = re.sub(r"(max_over_time\()?\bdlr_\w+\{[^}]*\}(\[15m\] offset 1h\))?", "series", query)
        assert len(re.findall(r"by \(namespace, job_name[^)]*\)\s*\(\s*series", by_job)) == by_job.count(
            "series"
        ), where


def test_values_of_labels_that_queries_name_exist(scraped: str) -> None:
    """A phase or class that is misspelt would never match."""
    for where, query in [*ALERTS, *PANELS]:
        for label, values in re.findall(r'(phase|state|class|type|name|controller)=~?"([\w|-]+)"', query):
            for value in values.split("|"):
                assert f'{label}="{value}"' in scraped, f"{where}: no {label} is called {value}"


@pytest.mark.real
@pytest.mark.skipif(not KUBECTL.exists(), reason="no kubectl beside this Python")
def test_kustomize_renders_what_is_shipped() -> None:
    command = [str(KUBECTL), "kustomize", str(FOLDER)]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    documents = {document["kind"]: document for document in yaml.safe_load_all(rendered)}
    assert documents == {document["kind"]: document for document in render(FOLDER)}
    assert documents.keys() == {
        *("ConfigMap", "PodMonitor", "PrometheusRule"),
        *("ServiceAccount", "Secret", "ClusterRoleBinding"),
    }
    namespaces = {document["metadata"].get("namespace") for document in documents.values()}
    assert namespaces == {deploy.DEFAULT_NAMESPACE, None}
    assert json.loads(documents["ConfigMap"]["data"]["dashboard.json"]) == dashboard()
    (deployment,) = (document for document in deploy.documents() if document["kind"] == "Deployment")
    pod = deployment["spec"]["template"]
    selector = documents["PodMonitor"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= pod["metadata"]["labels"].items()
    ports = [port["name"] for port in pod["spec"]["containers"][0]["ports"]]
    assert documents["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["port"] in ports
