"""A loopback TCP proxy that makes a network's faults on demand: cut, refuse, stall, a reply that never arrives.

All sockets belong to the proxy's one thread; the methods hand it an action and return when the action is done, so a
test can rely on the fault being in force.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from tests.servers.network import HOST, free_port

_CHUNK = 65_536
_BUFFER = 1 << 20  # bytes one side may be ahead of the other before reading from it pauses


@dataclass(eq=False)
class _End:
    """One socket of a connection, with the bytes that wait to be written to it."""

    sock: socket.socket
    is_client: bool
    waiting: bytearray = field(default_factory=bytearray)
    peer: _End = field(init=False)
    finished: bool = False  # the socket sent its end of stream
    swallow: bool = False  # on a client's end: the next reply is dropped


class Proxy:
    """Forwards connections to `host:port`, from the `with` block (or `start`) on; passes everything until told else."""

    def __init__(self, port: int, host: str = HOST) -> None:
        self.target = (host, port)
        self.port = free_port()
        self.host = HOST
        self._actions: deque[tuple[Callable[[], object], Future[object]]] = deque()
        self._waker, self._wake = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._ends: set[_End] = set()
        self._parked: list[socket.socket] = []  # accepted while stalled: not yet connected to the target
        self._stalled = False
        self._rule: bytes | None = None
        self._swallowed = 0
        self._running = True
        self._thread = threading.Thread(target=self._loop, name=f"test-proxy-{self.port}", daemon=True)

    def start(self) -> Self:
        """Listen and forward."""
        self._selector.register(self._waker, selectors.EVENT_READ, self._on_wake)
        self._listen()
        self._thread.start()
        return self

    def close(self) -> None:
        """Close every connection and end the thread."""
        if self._thread.is_alive():
            self._do(self._close)
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def dsn(self, url: str) -> str:
        """`url` with the proxy's host and port in place of the server's."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}{self.host}:{self.port}"))

    # --- faults

    def cut(self) -> None:
        """Reset every open connection on both sides (RST); new ones are accepted."""
        self._do(self._cut)

    def refuse(self) -> None:
        """Stop listening: new connections are refused, open ones go on."""
        self._do(self._unlisten)

    def stall(self) -> None:
        """Fall silent: connections are accepted and stay open, and not a byte is forwarded, either way."""
        self._do(self._stall)

    def swallow_next_reply(self, after: bytes = b"") -> None:
        """Lose one reply: what the server answers next is dropped and that connection reset.

        With `after`, only the answer to a request that contains these bytes, for example `b"COMMIT"`. Once.
        """
        self._do(lambda: setattr(self, "_rule", after))

    def restore(self) -> None:
        """Forward again; a reply not yet swallowed will not be. Bytes held back by `stall` are delivered."""
        self._do(self._restore)

    # --- what can be observed

    @property
    def connections(self) -> int:
        """Connections open from clients now, held ones included."""
        return len(self._ends) // 2 + len(self._parked)

    @property
    def swallowed(self) -> int:
        """Replies lost so far."""
        return self._swallowed

    # --- the thread

    def _do(self, action: Callable[[], object]) -> None:
        done: Future[object] = Future()
        self._actions.append((action, done))
        self._wake.send(b"!")
        done.result(timeout=10)

    def _loop(self) -> None:
        while self._running:
            for key, events in self._selector.select():
                key.data(events)
        self._selector.close()
        self._waker.close()
        self._wake.close()

    def _on_wake(self, _events: int) -> None:
        self._waker.recv(_CHUNK)
        while self._actions:
            action, done = self._actions.popleft()
            try:
                done.set_result(action())
            except BaseException as error:
                done.set_exception(error)

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server((self.host, self.port), backlog=128)
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ, self._on_connection)

    def _unlisten(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _on_connection(self, _events: int) -> None:
        if self._listener is None:  # refused in the same round of events
            return
        with contextlib.suppress(BlockingIOError):
            client = self._listener.accept()[0]
            if self._stalled:
                self._parked.append(client)
            else:
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self.target, timeout=5)
        except OSError:
            _reset(client)
            return
        ends = _End(client, is_client=True), _End(server, is_client=False)
        for end, peer in (ends, ends[::-1]):
            end.peer = peer
            end.sock.setblocking(False)
            end.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends.add(end)
        for end in ends:
            self._watch(end)

    def _watch(self, end: _End) -> None:
        """Ask for the events this end needs now: none when stalled, no reading where the other side is behind."""
        events = 0
        if not self._stalled and end in self._ends:
            if not end.finished and len(end.peer.waiting) < _BUFFER:
                events |= selectors.EVENT_READ
            if end.waiting:
                events |= selectors.EVENT_WRITE
        known = end.sock in self._selector.get_map()
        if known and events:
            self._selector.modify(end.sock, events, lambda ready: self._on_ready(end, ready))
        elif events:
            self._selector.register(end.sock, events, lambda ready: self._on_ready(end, ready))
        elif known:
            self._selector.unregister(end.sock)

    def _on_ready(self, end: _End, events: int) -> None:
        if end not in self._ends or self._stalled:  # closed or silenced by an earlier event of this round
            return
        try:
            if events & selectors.EVENT_READ:
                self._read(end)
            if events & selectors.EVENT_WRITE and end in self._ends:
                del end.waiting[: end.sock.send(end.waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(end)
        if end in self._ends:
            self._after(end)

    def _after(self, end: _End) -> None:
        if (end.finished and not end.peer.waiting) or (end.peer.finished and not end.waiting):
            self._drop(end, reset=False)
        else:
            self._watch(end)
            self._watch(end.peer)

    def _read(self, end: _End) -> None:
        data = end.sock.recv(_CHUNK)
        if not data:
            end.finished = True
        elif end.is_client:
            if self._rule is not None and self._rule in data:
                self._rule, end.swallow = None, True
            end.peer.waiting += data
        elif end.peer.swallow:
            self._swallowed += 1
            self._drop(end)
        else:
            end.peer.waiting += data

    def _drop(self, end: _End, *, reset: bool = True) -> None:
        for side in (end, end.peer):
            self._ends.discard(side)
            if side.sock in self._selector.get_map():
                self._selector.unregister(side.sock)
            _reset(side.sock) if reset else side.sock.close()

    def _cut(self) -> None:
        for end in list(self._ends):
            if end in self._ends:
                self._drop(end)
        while self._parked:
            _reset(self._parked.pop())

    def _stall(self) -> None:
        self._stalled = True
        for end in self._ends:
            self._watch(end)

    def _restore(self) -> None:
        self._stalled = False
        self._rule = None
        self._listen()
        for end in self._ends:
            end.swallow = False
            self._watch(end)
        while self._parked:
            self._connect(self._parked.pop(0))

    def _close(self) -> None:
        self._unlisten()
        self._cut()
        self._running = False


def _reset(sock: socket.socket) -> None:
    # Lingering for zero seconds makes close() send RST instead of FIN: what a crashed peer or a firewall does.
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
