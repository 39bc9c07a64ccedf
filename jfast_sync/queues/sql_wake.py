"""How an idle claimer is woken: a pipe of its own, PostgreSQL's notifications, datagrams between SQLite's processes.

Waking is an optimisation: polling finds every job by itself, so whatever fails here is logged and survived.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import select
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from sqlalchemy import text

from jfast_sync.backoff import backoff
from jfast_sync.redact import error_text

if TYPE_CHECKING:
    from jfast_sync.sql.engine import Database

__all__ = ["Coalesced", "Doorbell", "Listener", "PostgresListener", "SqliteListener", "channel", "ring_sqlite"]

log = logging.getLogger(__name__)

_STOP: Final = b"s"
_LOOK: Final = b"l"
_TRIES: Final = 10


class Listener(Protocol):
    """Where notifications of other processes arrive; used by the claiming thread only."""

    def prepare(self) -> int | None:
        """Be ready to hear, before the look that may find nothing; return the descriptor to wait on, None for none."""
        ...

    def drain(self) -> None:
        """Take in what arrived."""
        ...

    def close(self) -> None: ...


class Doorbell:
    """The claimer's own pipe: rung by any thread, and by a signal handler, because a write to a pipe takes no lock."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def stop_waiting(self) -> None:
        """End the present wait, or the next one."""
        self._ring(_STOP)

    def look_again(self) -> None:
        """Let a waiting claimer look at once."""
        self._ring(_LOOK)

    def _ring(self, byte: bytes) -> None:
        with contextlib.suppress(OSError):  # full: it is ringing already; closed: nobody waits
            os.write(self._writer, byte)

    def wait(self, seconds: float, other: int | None) -> bool:
        """Wait until rung, or ``other`` is readable, or the time is over; return whether to stop waiting."""
        readers = [self._reader] if other is None else [self._reader, other]
        ready, _, _ = select.select(readers, [], [], max(seconds, 0.0))
        return self._reader in ready and self._taken()

    def _taken(self) -> bool:
        rung = b""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._reader, 4096):
                rung += chunk
        return _STOP in rung

    def close(self) -> None:
        # Forgotten before they are closed: closed twice, the number may be somebody else's file by then.
        descriptors, self._reader, self._writer = (self._reader, self._writer), -1, -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)


class Coalesced:
    """Run an action for many callers at once: each waits for one that began after it asked, few have to run one.

    No timer: when nobody else is at it the action runs at once; while one runs, those who come later share the next.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self.renew()

    def renew(self) -> None:
        """Start afresh in a forked child, where a lock may have been left held."""
        self._changed = threading.Condition()
        self._begun = self._ended = 0
        self._running = False

    def __call__(self) -> None:
        with self._changed:
            wanted = self._begun + 1
            while self._running:
                self._changed.wait()
                if self._ended >= wanted:
                    return
            self._running = True
            self._begun = mine = self._begun + 1
        try:
            self._action()
        finally:
            with self._changed:
                self._running = False
                self._ended = max(self._ended, mine)
                self._changed.notify_all()


# --- PostgreSQL ----------------------------------------------------------------------------------------------------


def channel(table: str, schema: str) -> str:
    """Return the notification channel of a table: hashed, because a name has at most 63 bytes."""
    return "jfast_" + hashlib.sha256(f"{schema}.{table}".encode()).hexdigest()[:32]


class PostgresListener:
    """A connection that LISTENs, opened by the claimer when it first waits and again, with a pause, when it breaks."""

    def __init__(self, connect: Callable[[], Any], name: Callable[[], str]) -> None:
        self._connect = connect
        self._name = name
        self._connection: Any = None
        self._failures = 0
        self._not_before = 0.0

    def prepare(self) -> int | None:
        if self._connection is None and time.monotonic() >= self._not_before:
            self._open()
        return None if self._connection is None else self._connection.fileno()

    def _open(self) -> None:
        connection: Any = None
        try:
            connection = self._connect()
            connection.execute(f'LISTEN "{self._name()}"')
        except Exception as exc:
            if connection is not None:
                connection.close()
            self._failed(exc)
            return
        self._connection, self._failures = connection, 0

    def drain(self) -> None:
        if self._connection is None:
            return
        try:
            self._connection.pgconn.consume_input()
            while self._connection.pgconn.notifies():
                pass
        except Exception as exc:
            self.close()
            self._failed(exc)

    def _failed(self, exc: Exception) -> None:
        self._failures += 1
        self._not_before = time.monotonic() + backoff(self._failures, base=0.5, cap=30.0, jitter=0.5)
        if self._failures == 1:
            log.warning("not listening for new jobs for now, polling goes on: %s", error_text(exc))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()


def notify_postgres(database: Database, name: str) -> None:
    """Notify the waiting claimers; a failure is only logged."""
    try:
        # Not in the transaction of the jobs: a commit that notifies takes a lock that all such commits share.
        with database.control.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("SELECT pg_notify(:name, '')"), {"name": name})
    except Exception as exc:
        log.warning("could not wake the workers, they find the job by polling: %s", error_text(exc))


# --- SQLite --------------------------------------------------------------------------------------------------------


def _folder(path: str) -> Path:
    user = os.getuid() if hasattr(os, "getuid") else 0
    digest = hashlib.sha256(path.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"jfast-{user}-{digest}"


class SqliteListener:
    """A datagram socket in a folder that belongs to the database's file; whoever enqueues sends a byte to each."""

    def __init__(self, path: str) -> None:
        self._folder = _folder(path)
        self._socket: socket.socket | None = None
        self._at: Path | None = None
        self._broken = not hasattr(socket, "AF_UNIX")

    def prepare(self) -> int | None:
        if self._socket is None and not self._broken:
            try:
                self._open()
            except OSError as exc:
                self._broken = True
                log.warning("no socket to be woken by, polling goes on: %s", error_text(exc))
        return None if self._socket is None else self._socket.fileno()

    def _open(self) -> None:
        at = self._folder / f"{os.getpid()}-{secrets.token_hex(4)}"
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        opened.setblocking(False)
        try:
            self._bind(opened, at)
        except OSError:
            opened.close()
            raise
        self._socket, self._at = opened, at

    def _bind(self, opened: socket.socket, at: Path) -> None:
        for left in reversed(range(_TRIES)):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            try:
                found = self._folder.lstat()
                if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
                    raise PermissionError(f"{self._folder} belongs to somebody else")
                opened.bind(str(at))
                return
            except FileNotFoundError:  # the last listener of another process took the folder with it
                if not left:
                    raise

    def drain(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                while self._socket.recv(16):
                    pass

    def close(self) -> None:
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.close()
        at, self._at = self._at, None
        if at is not None:
            with contextlib.suppress(OSError):
                at.unlink()
            _leave(self._folder)


def ring_sqlite(path: str) -> None:
    """Send a byte to every claimer that waits on the database's file; a socket nobody has open is removed."""
    folder = _folder(path)
    with contextlib.suppress(OSError):
        sockets = list(folder.iterdir())
        if not sockets:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            heard = [_send(sender, at) for at in sockets]
        if not any(heard):
            _leave(folder)


def _send(sender: socket.socket, at: Path) -> bool:
    """Say whether somebody has the socket open."""
    try:
        sender.sendto(_LOOK, str(at))
    except (ConnectionRefusedError, FileNotFoundError):
        with contextlib.suppress(OSError):
            at.unlink()
        return False
    except OSError:
        pass  # full: it will look anyway
    return True


def _leave(folder: Path) -> None:
    """Remove the folder where nobody else is in it."""
    with contextlib.suppress(OSError):
        folder.rmdir()
