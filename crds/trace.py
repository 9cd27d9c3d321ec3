"""Identifiers of a job's trace, which controller, agent and commands derive from the job's uid.

Format: https://www.w3.org/TR/trace-context/#traceparent-header. So the senders of spans need not exchange
anything, and a span that is sent twice keeps its identifier.
"""

import hashlib
import uuid

ENV_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""OpenTelemetry's variable with the collector's URL. If it is set, spans are sent, and training processes get
ENV_TRACEPARENT (https://opentelemetry.io/docs/specs/otel/protocol/exporter/)."""
ENV_TRACEPARENT = "TRACEPARENT"
"""Parent of the spans of a training process
(https://opentelemetry.io/docs/specs/otel/context/env-carriers/)."""
JOB_SPAN = "job"


def round_span(round_: int) -> str:
    """Return the key of a round's span."""
    return f"round {round_}"


def trace_id(job_uid: str) -> int:
    """Return the job's trace id: the 128 bits of its uid, or a hash of one that is no UUID."""
    try:
        return uuid.UUID(job_uid).int
    except ValueError:
        return int.from_bytes(hashlib.blake2b(job_uid.encode(), digest_size=16).digest(), "big")


def span_id(job_uid: str, key: str) -> int:
    """Return the identifier of a span, 64 bits.

    Args:
        key: name of the span within its job.
    """
    return int.from_bytes(hashlib.blake2b(f"{job_uid} {key}".encode(), digest_size=8).digest(), "big")


def traceparent(job_uid: str, round_: int) -> str:
    """Return the value of ENV_TRACEPARENT for a process of that round."""
    return f"00-{trace_id(job_uid):032x}-{span_id(job_uid, round_span(round_)):016x}-01"
