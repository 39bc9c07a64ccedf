"""Waking across processes that share a SQLite file: a datagram to each, by a socket in a folder of the file's own."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import socket
import stat
import tempfile
from pathlib import Path
from typing import Final

from jfast_sync.redact import error_text

__all__ = ["SqliteListener", "ring"]

log = logging.getLogger(__name__)

_LOOK: Final = b"l"
_TRIES: Final = 10


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
            try:
                with contextlib.suppress(FileExistsError):
                    self._folder.mkdir(mode=0o700)
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


def ring(path: str) -> None:
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
