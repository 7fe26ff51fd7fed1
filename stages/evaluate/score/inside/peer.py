"""Calls between the process of the tests and the process of a candidate, over a socket; both sides run this code.

A side sends `{"do": "call", "with": [...]}` and waits for `{"value": ...}` or `{"error": [type, text]}`; while it
waits it may itself be asked (a candidate that calls a function it was given). Objects that are not plain data stay in
their process: the other side holds a `Remote` and asks for each operation on it. So nothing that a candidate defines
ever runs in the process of the tests, and the tests' code and expected values never reach the candidate.
"""

import builtins
import json
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from stages.evaluate.score.inside.codec import NotPlainError, decode, encode, update

MAX_MESSAGE_BYTES = 16_000_000

ENDS_A_LOOP = (StopIteration, StopAsyncIteration)

_LENGTH = struct.Struct(">I")


class BrokenPeerError(BaseException):
    """The other side has died ("died"), or sent something that is not a message ("refused").

    No subclass of Exception: a test's `except Exception` does not catch it.
    """

    def __init__(self, result: str) -> None:
        super().__init__(result)
        self.result = result


class CandidateError(Exception):
    """An exception of the candidate whose type does not cross: its own class, or one that would end a loop or Python.

    A StopIteration would end a `for` of the tests early, and the assertions in it would not run.
    """


class Remote:
    """An object of the other process. What is done with it is done there, and the result comes back."""

    __slots__ = ("_peer", "_reference")

    def __init__(self, peer: "Peer", reference: int) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_reference", reference)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call it there."""
        return self._peer.request("call", self, list(arguments), named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._peer.request("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.request("setattr", self, name, value)

    def __iter__(self) -> Iterator[Any]:
        iterator = self._peer.request("iter", self)
        while found := self._peer.request("next", iterator):
            yield found[0]

    def __getitem__(self, key: Any) -> Any:
        return self._peer.request("getitem", self, key)

    def __len__(self) -> int:
        return int(self._peer.request("len", self))

    def __contains__(self, item: Any) -> bool:
        return self._peer.request("contains", self, item) is True

    def __str__(self) -> str:
        return str(self._peer.request("str", self))

    def __repr__(self) -> str:
        return str(self._peer.request("repr", self))

    def __bool__(self) -> bool:
        return self._peer.request("bool", self) is True


class Peer:
    """One side of the connection."""

    def __init__(
        self,
        connection: socket.socket,
        operations: Mapping[str, Callable[..., Any]],
        may_refer: Callable[[Any], bool],
    ) -> None:
        """`operations` are those that the other side may ask for, on objects for which `may_refer` is true."""
        self._connection = connection
        self._operations = operations
        self._may_refer = may_refer
        self._own_objects: list[Any] = []
        self._own_numbers: dict[int, int] = {}
        self.broken = ""
        """Why the other side is lost, also where the tests have caught that."""

    def request(self, operation: str, *arguments: Any) -> Any:
        """Let the other side do it. Raises what it raises there, and BrokenPeerError."""
        self._send({"do": operation, "with": encode(list(arguments), self._refer)})
        return self.reply(list(arguments))

    def reply(self, arguments: list[Any]) -> Any:
        """The answer to a request; `arguments` are changed as they were on the other side."""
        while "do" in (message := self._receive()):
            self.answer(message)
        try:
            if "changed" in message:
                update(arguments, decode(message["changed"], self._resolve))
            if "error" not in message:
                return decode(message["value"], self._resolve)
            name, text = message["error"]
            error = exception(str(name), str(text))
        except (NotPlainError, KeyError, ValueError, TypeError, RecursionError):
            self._give_up("refused")
        raise error

    def answer(self, message: dict[str, Any]) -> None:
        """Do what the other side has asked for, and send the result."""
        try:
            arguments = decode(message["with"], self._resolve)
            operation = self._operations[message["do"]]
        except (NotPlainError, KeyError, TypeError, RecursionError):
            self._give_up("refused")
        before = json.dumps(encode(arguments, self._refer))
        reply: dict[str, Any]
        try:
            reply = {"value": encode(operation(*arguments), self._refer)}
        except BrokenPeerError:
            raise
        except BaseException as error:
            reply = {"error": [type(error).__name__, _text(error)]}
        after = encode(arguments, self._refer)
        if json.dumps(after) != before:
            reply["changed"] = after
        self._send(reply)

    def answer_until_the_end(self) -> None:
        """Answer all that the other side asks, until it is gone."""
        try:
            while True:
                self.answer(self._receive())
        except BrokenPeerError:
            pass

    def run(self, task: Callable[[], object]) -> bool:
        """Tell the other side, which waits with `reply`, how a task of this side ended. True if it raised nothing."""
        try:
            task()
        except BaseException as error:
            self._send({"error": [type(error).__name__, _text(error)]})
            return False
        self._send({"value": None})
        return True

    def _refer(self, value: Any) -> Any:
        if isinstance(value, Remote) and value._peer is self:
            return {"reference": {"yours": value._reference}}
        if not self._may_refer(value):
            raise TypeError(f"{type(value).__name__} is not plain data: a test cannot pass it to a candidate")
        number = self._own_numbers.setdefault(id(value), len(self._own_objects))
        if number == len(self._own_objects):
            self._own_objects.append(value)
        return {"reference": {"mine": number}}

    def _resolve(self, reference: Any) -> Any:
        ((owner, number),) = reference.items()
        if type(number) is not int or number < 0:
            raise NotPlainError("no reference")
        if owner == "mine":  # the sender's
            return Remote(self, number)
        if number >= len(self._own_objects):
            raise NotPlainError("no reference")
        return self._own_objects[number]

    def _send(self, message: dict[str, Any]) -> None:
        content = json.dumps(message).encode()
        if len(content) > MAX_MESSAGE_BYTES:
            content = json.dumps({"error": ["OverflowError", f"more than {MAX_MESSAGE_BYTES} bytes"]}).encode()
        try:
            self._connection.sendall(_LENGTH.pack(len(content)) + content)
        except OSError:
            self._give_up("died")

    def _receive(self) -> dict[str, Any]:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > MAX_MESSAGE_BYTES:
            self._give_up("refused")
        try:
            message = json.loads(self._read(length))
        except (ValueError, RecursionError):
            self._give_up("refused")
        if not isinstance(message, dict):
            self._give_up("refused")
        return message

    def _read(self, count: int) -> bytes:
        content = bytearray()
        while len(content) < count:
            try:
                part = self._connection.recv(min(count - len(content), 1 << 20))
            except OSError:
                part = b""
            if not part:
                self._give_up("died")
            content += part
        return bytes(content)

    def _give_up(self, result: str) -> NoReturn:
        self.broken = self.broken or result
        raise BrokenPeerError(result)


def exception(name: str, text: str) -> Exception:
    """The exception to raise here for the other side's: of the same type if that is a builtin one and harmless."""
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, ENDS_A_LOOP):
        with suppress(TypeError):  # UnicodeDecodeError and a few others want more than a text
            return found(text)
    return CandidateError(f"{name}: {text}")


def _text(error: BaseException) -> str:
    try:
        return str(error)[:1000]
    except BaseException:
        return ""
