"""What an agent writes of a check is what the CRD takes, whatever the probes say."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from agent.node_check.view import last_round, with_local, with_pair
from crds.agent_report import MAX_PAIR_PROBES, AgentCheck, ProbeEnding
from crds.wire import from_wire
from healthcheck.probes.report import ProbeReport
from healthcheck.probes.suite import AGAIN

READER = TypeAdapter(AgentCheck)
texts = st.text(max_size=9) | st.sampled_from(["ö" * 600, "x" * 1_024, "ö" * 1_025])
many_texts = st.builds(lambda text, count: (text,) * count, texts, st.sampled_from([0, 1, 40]))
figures = st.dictionaries(st.sampled_from(["a", "b", "x" * 99]), st.floats()) | st.just(
    {str(n): 0.5 for n in range(80)}
)

results = st.builds(
    ProbeReport,
    st.sampled_from(ProbeEnding),
    texts,
    figures,
    many_texts,
    many_texts,
    probe=st.sampled_from(["device_state", "gemm", "copies", "intra_node", "pair"]),
    seconds=st.floats(0, 3_600),
    stderr_tail=texts,
)


@given(
    st.lists(results, min_size=1, max_size=4),
    st.lists(results, max_size=3),
    st.sampled_from([1, MAX_PAIR_PROBES]),
)
def test_what_is_written_is_what_the_crd_takes(
    local: list[ProbeReport], some: list[ProbeReport], times: int
) -> None:
    pairs = some * times
    report = with_local(AgentCheck("uid"), local)
    for round_, result in enumerate(pairs, start=1):
        report = with_pair(report, round_, result)
    written = json.loads(json.dumps(report.to_wire(), allow_nan=False))
    read = READER.validate_python(written)
    assert read == from_wire(AgentCheck, written)
    assert read.to_wire() == written, "nothing would be pruned"
    assert [outcome.ending for outcome in read.local] == [result.ending.value for result in local]
    assert [outcome.round for outcome in read.pairs] == list(range(1, len(pairs) + 1))[-MAX_PAIR_PROBES:]
    assert last_round(report) == len(pairs)


def test_what_a_node_measured_again_is_still_told_after_many_rounds() -> None:
    again = ProbeReport(ProbeEnding.PASSED, figures={"gemm_bf16_tflops": 500.0}, probe=AGAIN)
    told, last = AgentCheck("uid"), MAX_PAIR_PROBES + 8
    for round_ in range(1, last + 1):
        told = with_pair(
            told, round_, again if round_ in (3, 4) else ProbeReport(ProbeEnding.PASSED, probe="pair")
        )
    assert [pair.round for pair in told.pairs][:2] == [3, 4] and told.pairs[0].figures == again.figures
    assert last_round(told) == last and len(told.pairs) == MAX_PAIR_PROBES
