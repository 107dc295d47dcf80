"""Large bodies: their pieces, and reused memory."""

from __future__ import annotations

from tinker._wire import (
    INLINE_NBYTES,
    KEPT_NBYTES,
    STEP_NBYTES,
    UPLOAD_PIECE,
    Buffers,
    as_pieces,
    slices,
)


def test_released_memory_is_reused() -> None:
    """Released memory is reused for the next body of about its size."""
    buffers = Buffers()
    first = buffers.join([b"a" * 10, memoryview(b"b" * STEP_NBYTES)])
    assert bytes(first) == b"a" * 10 + b"b" * STEP_NBYTES
    memory = first.obj
    buffers.release(first)
    second = buffers.join([b"c" * (STEP_NBYTES + 1)])
    assert second.obj is memory
    assert bytes(second) == b"c" * (STEP_NBYTES + 1)


def test_memory_in_use_is_left_alone() -> None:
    """Two bodies in use at the same time have separate memory."""
    buffers = Buffers()
    one, other = buffers.join([b"1"]), buffers.join([b"2"])
    assert (bytes(one), bytes(other)) == (b"1", b"2")


def test_memory_is_kept_within_bounds() -> None:
    """Beyond some megabytes no memory is kept, and a view of foreign memory is not reused."""
    buffers = Buffers()
    views = [buffers.join([bytes(8 * STEP_NBYTES)]) for _ in range(6)]
    for view in views:
        buffers.release(view)
    buffers.release(memoryview(b"foreign"))
    again = [buffers.join([bytes(8 * STEP_NBYTES)]) for _ in range(6)]
    known = {id(view.obj) for view in views}
    assert sum(id(view.obj) in known for view in again) >= KEPT_NBYTES // (8 * STEP_NBYTES)
    assert len({id(view.obj) for view in again}) == 6
    assert buffers.join([b""]).nbytes == 0


def test_small_bodies_are_one_piece() -> None:
    """A body that fits into the socket buffers is one piece, however it was created."""
    assert as_pieces([b"a", memoryview(b"b"), bytearray(b"c")]) == ((b"abc",), 3)


def test_large_pieces_are_not_copied() -> None:
    """A few large pieces are passed without a copy; many small ones are copied into a few."""
    head, large = b"head", memoryview(bytes(3 * UPLOAD_PIECE + 1))
    pieces, _ = as_pieces([head, *slices(large)])
    assert [len(piece) for piece in pieces] == [4, UPLOAD_PIECE, UPLOAD_PIECE, UPLOAD_PIECE, 1]
    assert all(piece.obj is large.obj for piece in pieces[1:] if isinstance(piece, memoryview))
    many, _ = as_pieces([bytes([index % 256]) * 100 for index in range(INLINE_NBYTES)])
    assert len(many) == -(-100 * INLINE_NBYTES // UPLOAD_PIECE)
    assert b"".join(many)[:300] == b"\x00" * 100 + b"\x01" * 100 + b"\x02" * 100
