"""Which connection is closed when there is no more room, and which first heads are refused by their bytes."""

import pytest

from forebay.serve.problems import Problem
from forebay.serve.security.connections import Connections, EarlyRejection


class FakeConnection:
    """A connection that records whether it was dropped."""

    def __init__(self) -> None:
        self.dropped = False

    def drop(self) -> None:
        self.dropped = True


def arrived(connections: Connections, count: int, source: str = "a") -> list[FakeConnection]:
    lines = [FakeConnection() for _ in range(count)]
    for line in lines:
        connections.add(line, source)
    return lines


def test_the_oldest_stranger_of_a_source_makes_room_for_its_next() -> None:
    connections = Connections(100, anonymous=10, per_address=4)
    other = arrived(connections, 1, "b")
    lines = arrived(connections, 6)
    assert [line.dropped for line in lines] == [True, True, False, False, False, False]
    assert not other[0].dropped
    assert len(connections) == 5


def test_the_oldest_stranger_of_all_goes_when_all_together_are_too_many() -> None:
    connections = Connections(100, anonymous=4, per_address=3)
    lines = [line for source in "abcdef" for line in arrived(connections, 1, source)]
    assert [line.dropped for line in lines] == [True, True, False, False, False, False]


def test_a_known_connection_is_never_dropped_for_others() -> None:
    gone: list[int] = []
    connections = Connections(8, anonymous=4, per_address=4, dropped=lambda: gone.append(1))
    known = arrived(connections, 3)
    for line in known:
        connections.mark_authenticated(line)
        connections.mark_authenticated(line)
    lines = arrived(connections, 10)
    assert not any(line.dropped for line in known)
    assert sum(line.dropped for line in lines) == len(gone) == 6
    for line in (*known, *lines):
        connections.remove(line)
        connections.mark_authenticated(line)
    assert len(connections) == 0


def test_there_are_never_more_than_there_may_be() -> None:
    connections = Connections(5, anonymous=5, per_address=5)
    for line in (first := arrived(connections, 5)):
        connections.mark_authenticated(line)
    (late,) = arrived(connections, 1)
    assert late.dropped
    assert not any(line.dropped for line in first)
    connections.remove(first[0])
    assert not arrived(connections, 1)[0].dropped
    assert len(connections) == 5


@pytest.mark.parametrize(
    ("head", "refused"),
    [
        ("GET /queues HTTP/1.1\r\nAuthorization: Bearer fb_bad\r\n\r\n", True),
        ("POST /jobs HTTP/1.1\r\nHost: x\r\nauthorization:bearer  fb_bad \r\nA: b\r\n\r\n{}", True),
        ("GET /queues HTTP/1.1\r\nAuthorization: Bearer fb_good\r\n\r\n", False),
        ("GET /queues HTTP/1.1\r\nAuthorization: Bearer fb_bad\r\n", False),
        ("GET /queues HTTP/1.1\r\nHost: x\r\n\r\nAuthorization: Bearer fb_bad\r\n\r\n", False),
        ("GET /queues HTTP/1.1\r\nAuthorization: Bearer eyJ.a.b\r\n\r\n", False),
        ("GET /q HTTP/1.1\r\nAuthorization: Bearer fb_bad\r\nAuthorization: Bearer fb_good\r\n\r\n", False),
        ("GET /health HTTP/1.1\r\nAuthorization: Bearer fb_bad\r\n\r\n", False),
        ("GET /healthy HTTP/1.1\r\nAuthorization: Bearer fb_bad\r\n\r\n", True),
        ("GET /ui/jobs HTTP/1.1\r\nAuthorization: Bearer fb_bad\r\n\r\n", False),
        ("GET / HTTP/1.1\r\nAuthorization: Bearer fb_bad\r\n\r\n", False),
        ("HEAD /queues HTTP/1.1\r\nAuthorization: Bearer fb_bad\r\n\r\n", False),
    ],
)
def test_a_first_head_with_a_bad_key_is_refused_by_its_bytes(head: str, refused: bool) -> None:
    refusal = EarlyRejection(
        lambda text: text == "fb_good", Problem(401, "unauthorized", "Authentication is needed"), "http"
    )
    answer = refusal.response_to(head.encode())
    assert (answer is not None) is refused
    if answer is not None:
        assert answer.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
        head_part, _, body = answer.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head_part
