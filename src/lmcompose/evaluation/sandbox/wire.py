"""Plain data between the program's process and the tests' process: what arrives is data, never an object with methods.

The tests compare what arrives here. A value whose `==` always answers True cannot travel: numbers, text and containers
arrive as exact built-in types, and anything else stays where it is and arrives as a number that stands for it.
"""

import json
import os
from collections.abc import Callable
from typing import Any

LONGEST = 1 << 25
"""Bytes that one message may have."""


def encode(value: Any, keep: Callable[[Any], int]) -> Any:
    """What JSON can carry for `value`.

    Args:
        keep: stores an object that cannot travel and returns the number that stands for it.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return {"int": format(int.__pos__(value), "x")}
    if isinstance(value, float):
        return {"float": float.hex(float.__pos__(value))}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, complex):
        return {"complex": [float.hex(value.real), float.hex(value.imag)]}
    if isinstance(value, dict):
        return {"dict": [[encode(part, keep) for part in pair] for pair in dict.items(value)]}
    kinds: tuple[Any, ...] = (list, tuple, set, frozenset)
    for kind in kinds:
        if isinstance(value, kind):
            return {kind.__name__: [encode(part, keep) for part in kind.__iter__(value)]}
    binaries: tuple[Any, ...] = (bytes, bytearray)
    for binary in binaries:
        if isinstance(value, binary):
            return {binary.__name__: binary.hex(value)}
    if type(value) is range:
        return {"range": [format(part, "x") for part in (value.start, value.stop, value.step)]}
    return {"kept": keep(value)}


def decode(data: Any, kept: Callable[[int], Any]) -> Any:
    """The value again, of exact built-in types. `kept` turns the number of an object that stayed behind into something.

    Raises:
        ValueError: the message is none that `encode` makes.
    """
    if data is None or isinstance(data, bool | str):
        return data
    if not (isinstance(data, dict) and len(data) == 1):
        raise ValueError("no message of this kind")
    (name, content), *_ = data.items()
    readers: dict[str, Callable[[Any], Any]] = {
        "int": lambda text: int(text, 16),
        "float": float.fromhex,
        "complex": lambda parts: complex(*map(float.fromhex, parts)),
        "dict": lambda pairs: {decode(key, kept): decode(part, kept) for key, part in pairs},
        "list": lambda parts: [decode(part, kept) for part in parts],
        "tuple": lambda parts: tuple(decode(part, kept) for part in parts),
        "set": lambda parts: {decode(part, kept) for part in parts},
        "frozenset": lambda parts: frozenset(decode(part, kept) for part in parts),
        "bytes": bytes.fromhex,
        "bytearray": bytearray.fromhex,
        "range": lambda parts: range(*(int(part, 16) for part in parts)),
        "kept": lambda number: kept(int(number)),
    }
    if name not in readers:
        raise ValueError("no message of this kind")
    try:
        return readers[name](content)
    except TypeError as error:
        raise ValueError("no message of this kind") from error


def send(descriptor: int, message: Any) -> None:
    """Write one message: its length in eight bytes, then JSON.

    Raises:
        ValueError: the message is too long.
        OSError: nobody reads any more.
    """
    text = json.dumps(message).encode()
    if len(text) > LONGEST:
        raise ValueError("too long to send")
    data = memoryview(len(text).to_bytes(8, "big") + text)
    while data:
        data = data[os.write(descriptor, data) :]


def receive(descriptor: int) -> Any:
    """Read one message.

    Raises:
        EOFError: the other side is gone.
        ValueError: it is no message, or too long.
    """
    length = int.from_bytes(_exactly(descriptor, 8), "big")
    if length > LONGEST:
        raise ValueError("too long a message")
    return json.loads(_exactly(descriptor, length))


def _exactly(descriptor: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = os.read(descriptor, min(count - len(data), 1 << 20))
        if not part:
            raise EOFError("the other side is gone")
        data += part
    return bytes(data)
