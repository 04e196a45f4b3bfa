"""Object stores on loopback for the tests of lakes: real servers that speak the APIs of S3, Google and Azure.

    s3      moto's server
    gs      the same one: Google's XML API is that of S3, but for the header of a write that has to create (`as_s3`)
    abfss   Azurite, Microsoft's own emulator; `make azurite` installs it

Their addresses are known before they run, so that Spark's Python processes have them in their environment.
`python -m tests.spark.object_stores gs PORT` serves one of the first two.
"""

import base64
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.spark.cluster import HOME, free_port
from tests.waiting import eventually

BUCKET: Final = "lakes"
ROOT: Final = Path(__file__).parents[2]
INSTALLED: Final = Path(sys.prefix, "azurite", "node_modules", ".bin")
_PORTS: Final = {scheme: free_port() for scheme in ("s3", "gs", "abfss")}
_AT: Final = {scheme: f"http://{HOME}:{port}" for scheme, port in _PORTS.items()}
_ACCOUNT: Final = "devstoreaccount1"
_KEY: Final = base64.b64encode(b"a key that every test of this tree uses").decode()
_VERSION: Final = "2021-08-06"

ENVIRONMENT: Final = {
    "AWS_ENDPOINT_URL": _AT["s3"],
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(
        {"gcs_base_url": _AT["gs"], "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    ),
    "GOOGLE_ALLOW_HTTP": "true",
    "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
    "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
    "AZURE_STORAGE_USE_EMULATOR": "true",
    "AZURE_STORAGE_ALLOW_HTTP": "true",
    "AZURITE_BLOB_STORAGE_URL": _AT["abfss"],
}
URIS: Final = {
    "s3": f"s3://{BUCKET}",
    "gs": f"gs://{BUCKET}",
    "abfss": f"abfss://{BUCKET}@{_ACCOUNT}.dfs.core.windows.net",
}


@contextmanager
def serving(scheme: str) -> Iterator[str]:
    """The URI of an empty bucket, while its server runs and this process has the environment to reach it."""
    words, own = _command(scheme)
    with (
        subprocess.Popen(
            words, env=os.environ | own, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as server,
        pytest.MonkeyPatch.context() as environment,
    ):
        for name, value in ENVIRONMENT.items():
            environment.setenv(name, value)
        try:
            eventually(lambda: _has_bucket(scheme))
            yield URIS[scheme]
        finally:
            server.terminate()


def _command(scheme: str) -> tuple[list[str], dict[str, str]]:
    if scheme != "abfss":
        return [sys.executable, "-m", __name__, scheme, str(_PORTS[scheme])], {}
    found = shutil.which("azurite-blob") or shutil.which("azurite-blob", path=str(INSTALLED))
    if found is None:
        pytest.skip(f"no azurite-blob on PATH or in {INSTALLED}: run `make azurite`, which needs npm")
    options = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence"]
    address = ["--blobHost", HOME, "--blobPort", str(_PORTS[scheme])]
    return [found, *options, *address], {"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_KEY}"}


def _has_bucket(scheme: str) -> bool:
    try:
        urlopen(
            _azure_request() if scheme == "abfss" else Request(f"{_AT[scheme]}/{BUCKET}", method="PUT"), timeout=60
        ).close()
    except URLError as error:
        if hasattr(error, "code"):
            raise
        return False
    return True


def _azure_request() -> Request:
    """Creates the container; signed, as Azure demands of every request."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
    lines += [f"/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}", "restype:container"]
    signed = hmac.new(base64.b64decode(_KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(signed).decode()}"
    return Request(f"{_AT['abfss']}/{_ACCOUNT}/{BUCKET}?restype=container", method="PUT", headers=headers)


def as_s3(application: Callable[..., Any]) -> Callable[..., Any]:
    """What a client says to Google, said as to S3; and the generation of an object, which clients read."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        if environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH") == "0":
            environ["HTTP_IF_NONE_MATCH"] = "*"
        scope = "Credential=test/20300101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=none"
        environ["HTTP_AUTHORIZATION"] = f"AWS4-HMAC-SHA256 {scope}"

        def begin(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            return start(status, [*headers, ("x-goog-generation", "1")], *error)

        return application(environ, begin)

    return answer


def main(scheme: str, port: str) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    application = DomainDispatcherApplication(create_backend_app)
    run_simple(HOME, int(port), as_s3(application) if scheme == "gs" else application, threaded=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
