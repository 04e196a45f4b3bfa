"""The board of the quarantine: one suspect at a time in a place, the next one after the verdict is durable."""

from forebay.work.suspects import SuspectBoard

A, B, C, D = (1, 1), (2, 1), (3, 1), (4, 1)


def test_a_place_has_one_suspect_at_a_time() -> None:
    board = SuspectBoard(2, 8)
    starts = board.admit([A, B, C, D])
    assert [suspect for suspect, _ in starts] == [A, B]
    assert len({place for _, place in starts}) == 2
    assert board.room == 6


def test_the_next_one_begins_where_a_verdict_is_durable() -> None:
    board = SuspectBoard(2, 8)
    places = dict(board.admit([A, B, C, D]))
    assert board.settled(B) == [(C, places[B])]
    assert board.settled(A) == [(D, places[A])]
    assert board.settled(C) == board.settled(D) == []
    assert board.room == 10


def test_one_that_leaves_while_it_waits_never_begins() -> None:
    board = SuspectBoard(1, 8)
    board.admit([A, B, C])
    assert board.settled(B) == []
    assert B not in board
    assert [suspect for suspect, _ in board.settled(A)] == [C]


def test_what_it_does_not_know_changes_nothing() -> None:
    board = SuspectBoard(1, 1)
    board.admit([A])
    assert board.settled(D) == []
    assert (board.room, A in board) == (1, True)
