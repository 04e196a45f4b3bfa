"""Routes come from signatures: roles before bodies, hot routes without detours, a document that names the key."""

import socket
from urllib.parse import urlsplit

import pytest

from forebay.serve.actor import Role
from forebay.serve.api.routing import FastPath
from forebay.serve.app import create_app
from forebay.store.open import open_store
from tests.serve.site import Site

HOT = {("POST", "/jobs"), ("POST", "/claim"), ("POST", "/settle"), ("POST", "/extend"), ("POST", "/progress")}
OPEN = {"/health", "/ready"}


@pytest.mark.parametrize("route", ["POST /jobs", "PUT /queues/mail", "POST /queues/mail/pause"])
def test_a_caller_without_the_role_is_refused_before_the_body_is_read(site: Site, route: str) -> None:
    address = urlsplit(site.url)
    head = f"{route} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {site.key(Role.VIEWER)}\r\n"
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=5) as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 403 ")


def test_hot_routes_are_called_by_their_path() -> None:
    store = open_store("memory:")
    app = create_app(store)
    direct = FastPath(app, app.routes).direct
    assert set(direct) >= HOT
    assert ("POST", "/jobs/batch") not in direct
    store.close()


def test_the_document_names_the_key_wherever_one_is_needed(site: Site) -> None:
    document = site.app.openapi()
    assert document["components"]["securitySchemes"] == {
        "key": {"type": "http", "scheme": "bearer", "description": "an API key"}
    }
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation.get("security") == (None if path in OPEN else [{"key": []}]), path


def test_the_document_has_the_types_of_signatures(site: Site) -> None:
    document = site.app.openapi()
    about = document["paths"]["/jobs"]["post"]
    assert about["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/NewJob"}
    assert about["responses"]["202"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/Accepted"
    }
    schemas = document["components"]["schemas"]
    assert schemas["NewJob"]["required"] == ["kind"]
    assert schemas["NewJob"]["additionalProperties"] is False
    assert schemas["NewJob"]["examples"][0]["kind"] == "send_email"
    assert {"HTTPValidationError", "ValidationError"}.isdisjoint(schemas)
