"""Buckets of a server on this machine that speaks S3."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pytest


class Bucket:
    """A bucket, seen by the client of those who made the protocol."""

    def __init__(self) -> None:
        import boto3

        self.name = f"bucket-{uuid.uuid4().hex[:8]}"
        self.client: Any = boto3.client("s3")
        self.client.create_bucket(Bucket=self.name)

    @property
    def url(self) -> str:
        return f"s3://{self.name}/run"

    def names(self) -> set[str]:
        found = self.client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return {item["Key"].removeprefix("run/") for item in found}

    def get(self, key: str) -> bytes:
        data: bytes = self.client.get_object(Bucket=self.name, Key=f"run/{key}")["Body"].read()
        return data

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=f"run/{key}", Body=data)


def served() -> Iterator[str]:
    """Run the server, named in the environment, as long as it is needed."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    given = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        yield given["AWS_ENDPOINT_URL"]
    server.stop()
