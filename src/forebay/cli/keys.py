"""`keys`: API keys of the HTTP server. A key is shown once, when it is created; the store keeps a digest of it.

Servers accept a new key and refuse a revoked one within seconds. Every change is in the operator log.
"""

from argparse import ArgumentParser

from forebay.cli.actions import record_action, terminal_user
from forebay.cli.argtypes import count, duration
from forebay.cli.command import Command, CommandGroup, Invocation
from forebay.cli.exits import FAILED, OK
from forebay.core.errors import Invalid
from forebay.core.humanize import iso, when
from forebay.core.instant import micros
from forebay.serve.actor import Role
from forebay.serve.security.keys import ApiKey, KeyFollower, Keyring, is_expired, mint
from forebay.store.protocol import Store


def _create_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--role", action="append", required=True, choices=[*Role], help="what it may do; repeatable")
    parser.add_argument("--name", default="key", help="a name for people (default: key)")
    parser.add_argument("--queues", default="*", metavar="A,B*", help="names and patterns (default: *, all)")
    parser.add_argument("--tenant", help="restrict the key to this tenant")
    parser.add_argument("--expires", type=duration, metavar="DURATION", help="expires after: 90d, 12h (default: never)")
    parser.add_argument("--rate", type=_rate, metavar="N", help="requests per second (default: the server's)")
    parser.add_argument("--burst", type=count, metavar="N", help="requests at once after a pause (default: the rate)")
    parser.add_argument("--jobs-per-hour", type=count, metavar="N", help="jobs it may enqueue per hour")
    parser.add_argument("--jobs-per-day", type=count, metavar="N", help="jobs it may enqueue per day")
    parser.add_argument(
        "--queue-names", type=count, metavar="N", help="queues without a spec that it may use per day (default: 1000)"
    )


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Invalid("rate", f"{text!r} is not a number", "give requests per second, such as 20 or 0.5") from None


def _create(call: Invocation) -> int:
    args = call.args
    with call.store(create=True) as store:
        now = store.now()
        key, text = mint(
            args.name,
            [Role(role) for role in dict.fromkeys(args.role)],
            now,
            queues=tuple(name.strip() for name in args.queues.split(",")),
            tenant=args.tenant,
            expires_at=None if args.expires is None else now + micros(args.expires),
            rate=args.rate,
            burst=args.burst,
            quota_hour=args.jobs_per_hour,
            quota_day=args.jobs_per_day,
            queue_names=args.queue_names,
        )
        KeyFollower(store, Keyring()).create(key, terminal_user())
        record_action(store, "keys create", key.id, name=key.name, roles=list(key.roles), queues=list(key.queues))
    if call.screen.as_json:
        call.screen.emit({"id": key.id, "key": text, "name": key.name, "roles": key.roles})
    else:
        call.screen.say(text)
        call.screen.note(
            "shown only once; send it as `Authorization: Bearer …`; running servers accept it within a second"
        )
    return OK


def _ls(call: Invocation) -> int:
    with call.store() as store:
        keys, now = _known(store).all(), store.now()
    keys.sort(key=lambda key: (key.created_at, key.id))
    if call.screen.as_json:
        for key in keys:
            call.screen.emit(_report(key) | {"expired": is_expired(key, now)})
        return OK
    if not keys:
        call.screen.note("no keys yet; create the first one with `forebay keys create --role admin`")
        return OK
    rows = [
        (
            key.id,
            key.name,
            ", ".join(key.roles),
            ", ".join(key.queues),
            key.tenant or "",
            when(key.created_at, now),
            "never" if key.expires_at is None else when(key.expires_at, now),
        )
        for key in keys
    ]
    call.screen.table(("id", "name", "roles", "queues", "tenant", "created", "expires"), rows)
    return OK


def _known(store: Store) -> Keyring:
    keyring = Keyring()
    KeyFollower(store, keyring).step()
    return keyring


def _report(key: ApiKey) -> dict[str, object]:
    """The key without its digest."""
    return {
        "id": key.id,
        "name": key.name,
        "roles": key.roles,
        "queues": key.queues,
        "tenant": key.tenant,
        "created_at": iso(key.created_at),
        "expires_at": iso(key.expires_at),
        "rate": key.rate,
        "burst": key.burst,
        "jobs_per_hour": key.quota_hour,
        "jobs_per_day": key.quota_day,
        "queue_names": key.queue_names,
    }


def _revoke_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+", help="ids, as shown by `forebay keys ls`")


def _revoke(call: Invocation) -> int:
    with call.store() as store:
        follower = KeyFollower(store, Keyring())
        gone = {key_id: follower.revoke(key_id, terminal_user()) for key_id in dict.fromkeys(call.args.ids)}
        for key_id, was_there in gone.items():
            if was_there:
                record_action(store, "keys revoke", key_id)
    for key_id, was_there in gone.items():
        if call.screen.as_json:
            call.screen.emit({"id": key_id, "revoked": was_there})
        elif was_there:
            call.screen.say(f"{key_id} is revoked; every server refuses it within 5 s")
        else:
            call.screen.note(f"key {key_id!r} is unknown")
    return OK if all(gone.values()) else FAILED


COMMANDS = (
    CommandGroup(
        "keys",
        "create, list and revoke the API keys of the HTTP server",
        (
            Command(
                "create",
                "create a key and show it once",
                _create,
                """
forebay keys create --role admin --name ada
forebay keys create --role producer --queues 'mail,media.*' --expires 90d --rate 50
forebay keys create --role producer --role viewer --tenant acme --jobs-per-day 100000
""",
                _create_arguments,
            ),
            Command("ls", "list the keys that are not revoked", _ls, "forebay keys ls\nforebay keys ls --json"),
            Command(
                "revoke",
                "revoke keys, on every server within 5 s",
                _revoke,
                "forebay keys revoke 357ceb21e585",
                _revoke_arguments,
            ),
        ),
    ),
)
