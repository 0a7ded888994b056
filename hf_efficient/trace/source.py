"""The bytes of a trace, decompressed piece by piece."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from hf_efficient.errors import OutputError

__all__ = ["json_pieces"]

PIECE_BYTES = 4 << 20
_GZIP = b"\x1f\x8b"
_GZIP_STREAM = 31  # zlib's wbits for a stream with gzip's head
_COMPRESSED_PIECE_BYTES = 256 << 10
_SMALL_PIECE_BYTES = 64


def json_pieces(path: Path) -> Iterator[bytes]:
    """The text of a file, at most ``PIECE_BYTES`` of it at a time.

    Its first bytes tell whether it is gzipped, not its name. Of a gzip stream that ends before its time, or is
    damaged, what came before is given.

    Raises:
        OutputError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == _GZIP
            file.seek(0)
            size = _COMPRESSED_PIECE_BYTES if compressed else PIECE_BYTES
            raw = iter(lambda: file.read(size), b"")
            yield from _decompressed(raw) if compressed else raw
    except OSError as error:
        told = error.strerror or type(error).__name__
        raise OutputError(f"{path} cannot be read: {told}; name a trace that torch's profiler wrote") from error


def _decompressed(raw: Iterator[bytes]) -> Iterator[bytes]:
    inflate = zlib.decompressobj(wbits=_GZIP_STREAM)
    for data in raw:
        while data:
            if inflate.eof:  # a gzip file may be several streams in a row
                if not data.startswith(_GZIP[:1]):
                    return
                inflate = zlib.decompressobj(wbits=_GZIP_STREAM)
            before = inflate.copy()
            try:
                piece = inflate.decompress(data, PIECE_BYTES)
            except zlib.error:
                yield from _until_damage(before, data)
                return
            if piece:
                yield piece
            data = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
    rest = inflate.flush()
    if rest:
        yield rest


def _until_damage(inflate: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """What can be had of data that zlib refuses as a whole."""
    for start in range(0, len(data), _SMALL_PIECE_BYTES):
        try:
            yield inflate.decompress(data[start : start + _SMALL_PIECE_BYTES])
        except zlib.error:
            return
