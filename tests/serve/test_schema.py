"""The whole API against its own OpenAPI document: thousands of made-up requests to a real server, good and bad ones.

No answer may be a 5xx, and every answer must be one that the document names: its status, its media type, its headers
and its schema. What the schema forbids must be refused. One server for all, on a store in memory that holds jobs in
every state, a log, a schedule and dead letters, so that requests meet real things.
"""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from forebay.core.instant import days
from forebay.core.job import Draft
from forebay.core.outcome import Ack, DeadLetter, Failure
from forebay.core.policy import Bounded, KeepFor, Retained
from forebay.core.spec import QueueSpec
from forebay.serve.app import create_app
from forebay.serve.settings import ServeSettings
from forebay.store.open import open_store
from forebay.store.protocol import Store, Want
from forebay_proof.evidence import happened
from tests.serve.site import Site

pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
"""The server, a thread of this process, draws its own numbers."""

SETTINGS = ServeSettings(port=0, max_wait=0.01, drain=1, dashboard=False)
CASES = 2_000
NIGHTLY = 22_000


def no_server_error(_: object, response: Any, case: Any) -> None:
    """`/ready` may say that it is not; nothing else may fail."""
    reply = response.status_code == 503 and case.operation.label == "GET /ready"
    assert response.status_code < 500 or reply, response.text


CHECKS = [
    no_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
KNOWN: dict[str, list[Any]] = {
    "job_id": [1, 2, 3, 4, 5, 6],
    "name": ["mail", "events", "nightly", "new"],
    "partition": [0, 1],
}


def operations() -> dict[str, Any]:
    """All of the document, by method and path."""
    store = open_store("memory://")
    schema = schemathesis.openapi.from_dict(create_app(store, SETTINGS).openapi())
    found: list[Any] = [each.ok() for each in schema.get_all_operations()]  # type: ignore[union-attr]
    store.close()
    return {each.label: each for each in found}


@schemathesis.serializer("application/x-ndjson")
def ndjson(_: object, value: Any) -> bytes:
    """A made-up job three times, and something else between."""
    line = json.dumps(value).encode()
    return b"\n".join([line, b"", line, b"{", line])


OPERATIONS = operations()


def filled(store: Store) -> None:
    """Something of everything."""
    store.put_spec(QueueSpec(name="mail", retention=KeepFor(days(1)), capacity=Bounded(500)))
    store.put_spec(QueueSpec(name="events", retention=Retained(2)))
    store.append("events", [b"1", b'{"n":2}', b"3"])
    store.enqueue([Draft("a", {"n": n}, "mail", key=f"k{n}") for n in range(6)])
    leases = store.claim([Want("mail", 3)], "test", timedelta(hours=1))
    store.settle([(leases[0], Ack(b'{"ok":true}')), (leases[1], DeadLetter(Failure("E", "no")))])


@pytest.fixture(scope="module")
def served() -> Iterator[Site]:
    store = open_store("memory://")
    filled(store)
    site = Site(store, SETTINGS).start()
    yield site
    site.stop()
    store.close()


def tried(site: Site, label: str, cases: int) -> None:
    """So many made-up requests of one kind; half of those with a name or an id get one that exists."""
    session = requests.Session()
    session.trust_env = False
    session.headers["Authorization"] = f"Bearer {site.key()}"

    @settings(max_examples=cases, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
    @given(case=OPERATIONS[label].as_strategy(), data=st.data())
    def check(case: Any, data: st.DataObject) -> None:
        for name, values in KNOWN.items():
            if name in (case.path_parameters or {}) and data.draw(st.booleans()):
                case.path_parameters[name] = data.draw(st.sampled_from(values))
        happened("cases")
        case.call_and_validate(base_url=site.url, session=session, checks=CHECKS, timeout=20)

    with session:
        check()


def test_the_document_has_routes_enough_for_so_many_cases() -> None:
    assert len(OPERATIONS) >= 30
    assert len(OPERATIONS) * share(CASES) >= CASES


def share(cases: int) -> int:
    return -(-cases // len(OPERATIONS))


@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_the_api_keeps_its_word(served: Site, label: str) -> None:
    tried(served, label, share(CASES))


@pytest.mark.nightly
@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_the_api_keeps_its_word_at_length(served: Site, label: str) -> None:
    tried(served, label, share(NIGHTLY))
