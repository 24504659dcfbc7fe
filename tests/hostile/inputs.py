"""Hostile inputs: messages with odd values, heads that no message has, and damaged frames.

All inputs are drawn from one `random.Random(seed)`, so a seed and a number identify an input.
"""

import random
import types
import typing
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, get_args, get_origin
from unittest.mock import patch

import msgspec

from polyrhythm.wire import frames
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest

KINDS = tuple(m.EVENT_TYPES)
_INTS = (-1, 0, 1, 2, 3, 5, 63, 64, 255, 2**31, 2**53 - 1, 2**53)
_REFUSED_INTS = (-2, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1)
_FLOATS = (0.0, 1.0, 0.5, 2.0, 1e-300, 1e-9, 64.0, 1e15, 1e100, -1e100, -1.0, 1e4)
_REFUSED_FLOATS = (float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 1e101)
_TEXTS = ("", "w", "worker-0", "float32", "int4", "[/]", "\x1b[2J", "é\u202e", "x" * 90)
_MANY = list(range(3_000))
_LONG_TEXTS = ("x" * 1_001, "\x00" * 3_000, "名" * 20_000)


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field, and whether the field is required."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {f.name: (hints[f.name], f.required) for f in msgspec.structs.fields(kind)}


_origin, _args = cache(get_origin), cache(get_args)


class Inputs:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    # -- messages with odd values --------------------------------------------------------------

    def message(self, kind: type[m.Message], **fields: Any) -> m.Message:
        """Return a message that the decoder may accept: each field has the right type and an
        arbitrary value."""
        made: dict[str, Any] = {}
        for name, (hint, required) in _fields(kind).items():
            if name in fields:
                made[name] = fields[name]
            elif required or self.rng.random() < 0.4:
                made[name] = self.value(hint)
        return kind(**made)

    def value(self, hint: Any, depth: int = 0) -> Any:
        rng, origin = self.rng, _origin(hint)
        if origin is Annotated:
            return self.value(_args(hint)[0], depth)
        if origin in (typing.Union, types.UnionType):
            return self.value(rng.choice(_args(hint)), depth)
        if origin is tuple:
            items = _args(hint)
            if items[-1] is not Ellipsis:
                return tuple(self.value(item, depth + 1) for item in items)
            return tuple(self.value(items[0], depth + 1) for _ in range(rng.choice((0, 1, 2, 5))))
        if origin is list:
            return [self.value(_args(hint)[0], depth + 1) for _ in range(rng.choice((0, 2)))]
        if origin is dict:
            key, item = _args(hint)
            some = range(rng.choice((0, 1, 3)))
            return {self.value(key): self.value(item, depth + 1) for _ in some}
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            return hint(
                **{name: self.value(part, depth + 1) for name, (part, _) in _fields(hint).items()}
            )
        return self._plain(hint)

    def _plain(self, hint: Any) -> Any:
        rng = self.rng
        if hint is bool:
            return rng.random() < 0.5
        if hint is int:
            usual = rng.random() < 0.9
            return (
                rng.choice(_INTS if usual else _REFUSED_INTS)
                if rng.random() < 0.6
                else rng.randrange(8)
            )
        if hint is float:
            return rng.choice(_FLOATS if rng.random() < 0.9 else _REFUSED_FLOATS)
        if hint is str:
            return rng.choice(_TEXTS if rng.random() < 0.95 else _LONG_TEXTS)
        if hint is bytes:
            return rng.randbytes(rng.choice((0, 1, 31, 32, 32, 32, 33, 5_000)))
        return None

    # -- heads of no valid message -------------------------------------------------------------

    def head(self, kind: type[m.Message]) -> bytes:
        """Return the head of a frame: that of a message with odd values, or one with fields that no
        message has."""
        rng = self.rng
        fields = list(msgspec.msgpack.decode(m.encode_head(self.message(kind))))
        match rng.randrange(7):
            case 0:
                fields[rng.randrange(len(fields))] = self._anything()
            case 1:
                fields += [self._anything() for _ in range(rng.choice((1, 3, 40)))]
            case 2:
                del fields[rng.randrange(len(fields)) :]
            case 3:
                depth = rng.choice((30, 500, 2_000, 20_000, 60_000))
                nested = rng.choice((b"\x91", b"\x81\xa1k")) * depth + b"\xc0"
                fields_nbytes = b"".join(map(msgspec.msgpack.encode, fields))
                if rng.random() < 0.5:  # put the nested value in place of the last field
                    fields_nbytes = b"".join(map(msgspec.msgpack.encode, fields[:-1]))
                    return _array(len(fields)) + fields_nbytes + nested
                return _array(len(fields) + 1) + fields_nbytes + nested
            case 4:
                return rng.randbytes(rng.choice((0, 1, 30, 900)))
            case 5:
                # the head of an array that is shorter than the length it states
                return b"\xdd" + rng.randbytes(4) + rng.randbytes(20)
        return msgspec.msgpack.encode(fields)

    def _anything(self) -> Any:
        rng = self.rng
        return rng.choice(
            (
                None,
                True,
                rng.choice(_REFUSED_INTS),
                rng.choice(_REFUSED_FLOATS),
                rng.choice(_LONG_TEXTS),
                rng.randbytes(40),
                [[[[]]]] * 3,
                {"a": {"b": [1, 2, {}]}},
                _MANY,
            )
        )

    # -- frames --------------------------------------------------------------------------------

    def frame(
        self,
        message: m.Message,
        payload: Sequence[bytes] = (),
        digest: Digest = Digest.XXH3,
        *,
        hello: bool = False,
    ) -> bytes:
        """Return a complete frame. `hello`: use the layout that frames have during the
        handshake."""
        return b"".join(frames.encode(message, payload, digest, 5, hello=hello))

    def odd_frame(
        self, kind: type[m.Message], digest: Digest = Digest.XXH3, *, hello: bool = False
    ) -> bytes:
        """Return a complete frame with valid checksums, whose head is not that of a valid
        message."""
        return self.with_head(kind, self.head(kind), self.payload(), digest, hello=hello)

    def with_head(
        self,
        kind: type[m.Message],
        head: bytes,
        payload: Sequence[bytes] = (),
        digest: Digest = Digest.XXH3,
        *,
        hello: bool = False,
    ) -> bytes:
        with patch.object(frames, "encode_head", lambda message: head):
            return self.frame(self.message(kind), payload, digest, hello=hello)

    def payload(self) -> Sequence[bytes]:
        rng = self.rng
        if rng.random() < 0.6:
            return ()
        return [rng.randbytes(rng.choice((1, 8, 20, 64, 256, 5_000)))]

    def damaged(self, data: bytes) -> bytes:
        """Return the bytes with some of them changed, removed, inserted or repeated."""
        rng, made = self.rng, bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(made) or 1)
            match rng.randrange(5):
                case 0 if made:
                    made[at] ^= 1 << rng.randrange(8)
                case 1:
                    del made[at : at + rng.choice((1, 4, 30))]
                case 2:
                    made[at:at] = rng.randbytes(rng.choice((1, 4, 30)))
                case 3:
                    made[at : at + 8] = rng.choice((b"\xff" * 8, bytes(8)))
                case _:
                    made += made[at : at + 200]
        return bytes(made)


def _array(length: int) -> bytes:
    return b"\xdc" + length.to_bytes(2, "big")
