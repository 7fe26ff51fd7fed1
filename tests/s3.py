"""An S3 on the loopback device."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest
from moto.server import ThreadedMotoServer


@contextmanager
def empty_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the name of a bucket; AWS's own variables lead this process and its children to it."""
    store, name = ThreadedMotoServer(ip_address="127.0.0.1", port=0), uuid.uuid4().hex
    store.start()
    try:
        host, port = store.get_host_and_port()
        variables = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
        for variable, value in (variables | {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "mine"}).items():
            monkeypatch.setenv(variable, value)
        boto3.client("s3").create_bucket(Bucket=name)
        yield name
    finally:
        store.stop()
