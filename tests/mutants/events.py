"""Guards of events: nothing is skipped, nothing comes twice, and a key sees what is its own."""

from tests.mutants.guards import Mutant

READER = ("tests/stores/test_events.py", "-k", "sqlite or failed")
HTTP = ("tests/serve/test_api_events.py",)

EVENT_MUTANTS = [
    Mutant(
        "a reader that continues inside a record gets its jobs again",
        "src/forebay/events.py",
        "position.index + 1 if begun and entry is page[0] else 0",
        "0",
        READER,
    ),
    Mutant(
        "what was read before a failed call is lost",
        "src/forebay/events.py",
        "            if not found:\n                raise\n",
        "            raise\n",
        READER,
    ),
    Mutant(
        "a position of another store is taken as one of this store",
        "src/forebay/events.py",
        "if position.offset > (end := store.ledger_extent()[1]):",
        "if position.offset > (end := MAX_ID):",
        READER,
    ),
    Mutant(
        "a key sees the events of every queue",
        "src/forebay/serve/event_streams.py",
        "if self._actor.reaches(event.queue)]",
        "]",
        HTTP,
    ),
    Mutant(
        "a key with a tenant sees the events of all tenants",
        "src/forebay/serve/event_streams.py",
        "if self._tenants.get(event.job_id) == self._actor.tenant",
        "if event.job_id in self._tenants",
        HTTP,
    ),
    Mutant(
        "a viewer gets the secrets of errors",
        "src/forebay/serve/event_streams.py",
        "return events if sees_secrets(self._actor) else list(map(_redacted, events))",
        "return events",
        HTTP,
    ),
    Mutant(
        "a stream outlives its key",
        "src/forebay/serve/api/events.py",
        "if credentials is None else None",
        "if credentials is None and False else None",
        HTTP,
    ),
    Mutant(
        "any number of streams is open at once",
        "src/forebay/serve/event_streams.py",
        "if self.streams >= limit:",
        "if self.streams > limit + 100:",
        HTTP,
    ),
]
