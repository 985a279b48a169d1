"""What runs inside the sandbox: a whole program, a program whose functions are called, or the tests that call them.

The tests run in a process that never runs a line of the program. They reach its functions through a pipe (`wire`), so
nothing that the program does to its own interpreter changes what a comparison in the tests says.
"""

import builtins
import importlib
import linecache
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from .wire import decode, encode, receive, send

MOST_ITEMS = 1_000_000
"""Items that the tests take from an iterator that stayed in the program."""


def run_whole(source: str, token_from: int, verdict_to: int) -> NoReturn:
    """Run a program to its last line, then write the token to the pipe of the verdict.

    The token waits in a pipe and is read only when the program has ended, so it is in no object that the program finds.
    """
    module = _module("__main__")
    _hide_the_sandbox()
    say, read, leave, flush = send, os.read, os._exit, _flush
    try:
        exec(_compiled(source, "program.py"), module.__dict__)
    except BaseException as error:
        _print(error)
        flush()
        say(verdict_to, {"error": type(error).__name__, "reason": _one_line(error)})
        leave(1)
    flush()
    say(verdict_to, {"token": read(token_from, 64).hex()})
    leave(0)


def serve(source: str, requests: int, replies: int) -> NoReturn:
    """Run a program, name what it defines, and answer calls until the tests end.

    Messages to the tests: `{"names": [...]}` or `{"raised": type, "reason": text}` first; for each request then
    `{"value": ...}`, `{"end": true}` or `{"raised": ...}`.
    """
    module = _module("program")
    _hide_the_sandbox()
    kept: list[Any] = []

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    try:
        exec(_compiled(source, "program.py"), module.__dict__)
        answer: dict[str, Any] = {"names": [name for name in list(module.__dict__) if not name.startswith("__")]}
    except BaseException as error:
        _print(error)
        answer = _raised(error)
    while True:
        _flush()
        send(replies, answer)
        try:
            request = receive(requests)
        except EOFError:
            os._exit(0)
        try:
            value = _answer(request, module.__dict__, lambda number: kept[number])
            answer = {"value": encode(value, keep)}
        except StopIteration:
            answer = {"end": True}
        except BaseException as error:
            answer = _raised(error)


def _answer(request: dict[str, Any], names: dict[str, Any], kept: Callable[[int], Any]) -> Any:
    """What one request asks for: a call, an attribute, or the next items of an iterator."""
    subject = names[request["name"]] if "name" in request else kept(request["kept"])
    if request["do"] == "call":
        keywords = {name: decode(value, kept) for name, value in request["keywords"].items()}
        return subject(*(decode(value, kept) for value in request["arguments"]), **keywords)
    if request["do"] == "attribute":
        return getattr(subject, request["attribute"])
    if request["do"] == "length":
        return len(subject)
    if request["do"] == "item":
        return subject[decode(request["item"], kept)]
    return iter(subject) if request["do"] == "iterate" else next(subject)


class Remote:
    """Something of the program that the tests can call, iterate and read, and that equals nothing but itself."""

    def __init__(self, where: dict[str, Any], ask: Callable[[dict[str, Any]], Any]) -> None:
        self._where, self._ask = where, ask

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        sent = [encode(value, number_of) for value in arguments]
        named = {name: encode(value, number_of) for name, value in keywords.items()}
        return self._ask({**self._where, "do": "call", "arguments": sent, "keywords": named})

    def __iter__(self) -> Iterator[Any]:
        iterator = self._ask({**self._where, "do": "iterate"})
        for _ in range(MOST_ITEMS):
            try:
                item = self._ask({**iterator._where, "do": "next"})
            except StopIteration:
                return
            yield item
        raise ValueError("an iterator of the program has no end")

    def __len__(self) -> int:
        length = self._ask({**self._where, "do": "length"})
        if not isinstance(length, int):
            raise TypeError("a length of the program is no number")
        return length

    def __getitem__(self, item: Any) -> Any:
        return self._ask({**self._where, "do": "item", "item": encode(item, number_of)})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask({**self._where, "do": "attribute", "attribute": name})


def number_of(value: Any) -> int:
    """The number of something of the program that is sent back to it.

    Raises:
        TypeError: it is an object of the tests, which cannot travel.
    """
    if isinstance(value, Remote) and "kept" in value._where:
        return int(value._where["kept"])
    raise TypeError(f"the tests cannot send a {type(value).__name__} to the program; send plain data")


def run_tests(
    tests: str, setup: str, functions: Sequence[str], replies: int, requests: int, verdict_to: int
) -> NoReturn:
    """Run `setup`, bind the program's functions, run the tests, and say on the verdict's pipe how they went."""
    module = _module("tests")

    def ask(request: dict[str, Any]) -> Any:
        send(requests, request)
        return _value(_reply(replies), ask)

    try:
        names = _reply(replies)["names"]
        exec(_compiled(setup, "setup.py"), module.__dict__)
        for name in functions or _free(names):
            module.__dict__[name] = Remote({"name": name}, ask)
        exec(_compiled(tests, "tests.py"), module.__dict__)
        verdict: dict[str, Any] = {"passed": True}
    except BaseException as error:
        verdict = {"error": type(error).__name__, "reason": _one_line(error)}
    send(verdict_to, verdict)
    os._exit(0)


def _free(names: Any) -> list[str]:
    """The program's names that hide no built-in of Python: the tests' own `abs` must stay Python's."""
    return [name for name in names if isinstance(name, str) and name.isidentifier() and not hasattr(builtins, name)]


def _reply(replies: int) -> dict[str, Any]:
    """The program's next message; an exception of the program is raised here again, as one of Python's own."""
    try:
        message = receive(replies)
    except EOFError:
        raise ProgramEnded("the program ended before its tests did") from None
    if not isinstance(message, dict):
        raise ValueError("the program sent what is no message")
    if "raised" in message:
        kind = getattr(builtins, str(message["raised"]), None)
        reason = str(message.get("reason", ""))[:1000]
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, UnicodeError):
            raise kind(reason)
        raise ProgramError(f"{message['raised']}: {reason}")
    if message.get("end"):
        raise StopIteration
    return message


def _value(message: dict[str, Any], ask: Callable[[dict[str, Any]], Any]) -> Any:
    return decode(message.get("value"), lambda number: Remote({"kept": number}, ask))


class ProgramEnded(Exception):  # noqa: N818 - the name is what the user reads
    """The program's process is gone."""


class ProgramError(Exception):
    """The program raised something that is no exception of Python's own."""


def _compiled(text: str, name: str) -> types.CodeType:
    """The code of a text, which tracebacks then quote."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return compile(text, name, "exec")


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module


def _hide_the_sandbox() -> None:
    """Leave none of these files where `import` finds them: a program that replaces a function of theirs lies."""
    for name in [name for name in sys.modules if name.split(".")[0] == __package__.split(".")[0]]:
        del sys.modules[name]
    importlib.invalidate_caches()


def _raised(error: BaseException) -> dict[str, Any]:
    return {"raised": type(error).__name__, "reason": str(_text(error))[:1000]}


def _one_line(error: BaseException) -> str:
    """Type, message and line of an exception, as a person reads it."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in ("tests.py", "program.py")
    ]
    where = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    return f"{type(error).__name__}: {_text(error)}"[:500].removesuffix(": ") + where


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # the program's own class
        return ""


def _print(error: BaseException) -> None:
    try:
        trace = error.__traceback__
        traceback.print_exception(type(error), error, trace.tb_next if trace else None, limit=-20)
    except BaseException:  # its own class again, or no memory
        return


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # the program may have put anything there
            continue
