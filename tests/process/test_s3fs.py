"""Large payloads and results on S3 through s3fs, the file system of `s3://` URLs, in a process of its own.

s3fs pins another botocore than moto, so that no environment has both: `make s3fs` installs it beside. The server is
moto's, on loopback.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from forebay_proof.servers.process import free_port
from tests.unit.test_blobs import makes_bucket
from tests.waiting import eventually

INSTALLED: Final = Path(sys.prefix, "s3fs")

PROGRAM: Final = """
import os
from datetime import timedelta

import s3fs

from forebay.blobs import Blobs
from forebay.client import Forebay
from forebay.core.errors import BlobFailed
from forebay.testing import JobTester

options = {"endpoint_url": os.environ["AT"], "key": "test", "secret": "test"}
blobs = Blobs("s3://payloads/forebay", options=options)
assert isinstance(blobs._fs, s3fs.S3FileSystem), blobs._fs
fb = Forebay("memory://", blobs=blobs)

@fb.job(keep_result=True, result_ttl=60)
def double(text: str) -> str:
    return text * 2

with JobTester(fb) as jobs:
    jobs.clock.advance(4_000_000_000_000_000)
    receipt = double.enqueue("x" * 300_000)
    jobs.run_all()
    assert receipt.result(0) == "x" * 600_000
    assert len(list(blobs._names(2**62))) == 2
    assert blobs.sweep(fb.store, timedelta(0)).removed == 0
    jobs.advance(minutes=2)
    jobs.run_all()
    assert blobs.sweep(fb.store, timedelta(0)).removed == 2
    assert list(blobs._names(2**62)) == []
    absent = Forebay("memory://", blobs=Blobs("s3://no-such-bucket/forebay", options=options))
    try:
        absent.enqueue("double", {"text": "x" * 300_000})
    except BlobFailed as error:
        print("refused:", error)
"""


@pytest.mark.nightly
def test_payloads_and_results_on_s3_through_s3fs() -> None:
    if not (INSTALLED / "s3fs").is_dir():
        pytest.skip("no s3fs: make s3fs")
    port = str(free_port())
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            at = f"http://127.0.0.1:{port}"
            eventually(lambda: makes_bucket(f"{at}/payloads"), "the S3 server runs")
            environment = os.environ | {"PYTHONPATH": str(INSTALLED), "AT": at, "AWS_DEFAULT_REGION": "us-east-1"}
            ran = subprocess.run(
                [sys.executable, "-c", PROGRAM],
                env=environment,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        finally:
            server.terminate()
    assert ran.returncode == 0, ran.stderr
    assert "nothing was enqueued" in ran.stdout
