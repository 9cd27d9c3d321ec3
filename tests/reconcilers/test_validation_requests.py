"""A NodeCheck as NVSentinel's validation-controller makes it, from the template of examples/node-health.

Its names, as of 0525f99: the request's, cut, then the tests' group and the attempt, a DNS label's 63 characters
in all; the request's begins with the node's, which may have dots.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from crds import names
from reconcilers.nodecheck.scope import worker_name
from tests.reconcilers.build import BAD, GOOD
from tests.reconcilers.check_stage import Agents, Stage

EXAMPLES = Path(__file__).parents[2] / "examples" / "node-health"
NODES = ["ip-10-0-0-1.ec2.internal", "ip-10-0-0-2.ec2.internal"]
NAME = "ip-10-0-0-1.ec2.internal-validation-9e957162e15e-dlr-group-1-1"
PROVIDER = yaml.safe_load((EXAMPLES / "nvsentinel.yaml").read_text())["lifecycle-manager"]["config"][
    "providers"
]["dlr"]


def rendered(nodes: list[str]) -> dict:
    """The template as Go's text/template renders it: one range, over structs with NodeName."""
    text = (EXAMPLES / PROVIDER["templateFile"]).read_text()
    before, line, after = re.split(r"\n\{\{- range \.Nodes\}\}|\n\{\{- end\}\}", text)
    return yaml.safe_load(before + "".join(line.replace("{{.NodeName}}", node) for node in nodes) + after)


@pytest.mark.parametrize("broken", [False, True])
async def test_a_validation_request_is_answered_by_one_condition(broken: bool) -> None:
    made = rendered(NODES)
    assert (made["apiVersion"], made["kind"]) == (names.API_VERSION, PROVIDER["kind"])
    assert made["apiVersion"] == f"{PROVIDER['apiGroup']}/{PROVIDER['version']}"
    staged = Stage(agents=Agents(local=lambda node: BAD if broken and node == NODES[0] else GOOD))
    staged.add_nodes(*NODES)
    staged.add_check(NAME, **made["spec"])
    await staged.play(NAME)
    wanted = PROVIDER["failedCondition" if broken else "successfulCondition"]
    assert staged.condition(wanted["type"], NAME)["status"] == wanted["status"]


@given(st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", fullmatch=True), st.integers(0, 9_999))
def test_pods_of_a_check_have_labels_for_names(check: str, index: int) -> None:
    pod = f"{worker_name(check, index)}-999"
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", pod)


@given(st.text("ab.-", max_size=60), st.text("ab.-", max_size=60))
def test_checks_do_not_share_their_pods_names(one: str, other: str) -> None:
    assert (worker_name(f"x{one}y", 0) == worker_name(f"x{other}y", 0)) == (one == other)
