"""The session a handler works in: one transaction that holds its writes, its claims and the job's completion."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, event, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry, Pool

from jfast_sync.errors import UnavailableError
from jfast_sync.redact import error_text
from jfast_sync.sql import sqlite_transactions
from jfast_sync.sql.failures import translated
from jfast_sync.sql.ownership import own
from jfast_sync.sql.sqlite_guard import GuardedConnection
from jfast_sync.sql.tenants import begin_as, work_as

if TYPE_CHECKING:
    from jfast_sync.sql.engine import Database

__all__ = [
    "AttemptTransaction",
    "Loud",
    "forget_sessions",
    "has_bells",
    "hold",
    "holds",
    "is_loud",
    "on_commit",
    "ring_after",
]

log = logging.getLogger(__name__)

_BELLS: Final = "jfast_bells"
_JOINED: Final = "jfast_joined"
_LOUD: Final = "jfast_loud"
_held: Counter[tuple[str, int]] = Counter()  # open sessions by SQLite file and thread


@contextmanager
def hold(path: str | None) -> Iterator[None]:
    """Note that this thread has a session open on a SQLite file."""
    key = _take(path)
    try:
        yield
    finally:
        _give(key)


def holds(path: str | None) -> bool:
    """Say whether this thread has a session open on a SQLite file, which another transaction would wait for."""
    return path is not None and _held[path, threading.get_ident()] > 0


def forget_sessions() -> None:
    """Start afresh in a forked child, whose threads have the parent's numbers and not its sessions."""
    _held.clear()


class Loud:
    """A bell whose error reaches whoever commits, for tests."""

    def __init__(self, bell: Callable[[], None]) -> None:
        self._bell = bell

    def __call__(self) -> None:
        self._bell()


def on_commit(session: Session, bell: Callable[[], None]) -> None:
    """Call ``bell`` once when the session's outermost transaction has committed."""
    session.info.setdefault(_BELLS, {})[id(bell)] = bell


def has_bells(session: Session) -> bool:
    """Say whether something of ours was written in a session's transaction, or an earlier one that was rolled back."""
    return _BELLS in session.info


def is_loud(session: Session, exc: Exception) -> bool:
    """Say whether an error came from a :class:`Loud` bell of this session's."""
    return session.info.get(_LOUD) is exc


def ring_after(session: Session) -> None:
    """Call what :func:`on_commit` noted; the commit has happened, so what fails here is only logged."""
    _ring(session.info)


@event.listens_for(Session, "after_commit")
def _committed(session: Session) -> None:
    # Fires for a released savepoint too, and in an attempt every commit of the handler is only that.
    if _BELLS not in session.info or _JOINED in session.info or session.in_nested_transaction():
        return
    outer = session.bind
    if isinstance(outer, Connection) and outer.in_transaction():  # whoever began it decides, and gives it back
        outer.info.setdefault(_BELLS, {}).update(session.info.pop(_BELLS))
        return
    ring_after(session)


@event.listens_for(Pool, "checkin")
def _given_back(_: object, record: ConnectionPoolEntry) -> None:
    # SQLAlchemy tells of a connection's commit before it happens, and of nothing after it but this. In a thread of its
    # own, since a bell may want a connection, and the pool may have no other one than this.
    if _BELLS in record.info:
        bells = {_BELLS: record.info.pop(_BELLS)}
        threading.Thread(target=_ring, args=(bells,), name="jfast-bell", daemon=True).start()


def _ring(info: dict[Any, Any]) -> None:
    for bell in info.pop(_BELLS, {}).values():
        try:
            bell()
        except Exception as exc:
            if isinstance(bell, Loud):
                info[_LOUD] = exc
                raise
            log.warning("nobody was woken after a commit: %s", error_text(exc))


class AttemptTransaction:
    """One job's transaction; ``session`` is joined to it, so a handler's own commit is a savepoint inside it.

    Made, used, committed and closed by the runner's thread. :meth:`cancel` and :meth:`terminate` come from another
    thread; a lock of the attempt's own makes sure that they never reach the connection's next user.

    ``connection`` is for what no rollback of the handler's may undo; the session's own work is a savepoint inside it.
    ``backend`` is the PostgreSQL process that serves it: what the driver was told until somebody asks the server, for a
    pooler in between tells numbers of its own.
    """

    def __init__(self, database: Database, tenant_id: str | None = None) -> None:
        self.tenant_id = tenant_id
        self._database = database
        self._lock = threading.Lock()
        self._open = True
        self._terminated = False
        self._key = _take(database.path)
        try:
            with translated():
                self.connection = database.engine.connect()
                self._owner = own(self.connection)
                try:
                    self._transaction = self.connection.begin()
                    if database.rls:  # outside of the session's savepoints too, whose rollback takes theirs back
                        begin_as(self.connection, tenant_id)
                except BaseException:
                    self._owner.ending = True
                    self.connection.close()
                    raise
        except BaseException:
            _give(self._key)
            raise
        driver: Any = self.connection.connection.driver_connection
        self._driver = driver
        self._info = self.connection.info
        self.backend: int | None = driver.info.backend_pid if database.dialect == "postgresql" else None
        self.session = Session(self.connection, join_transaction_mode="create_savepoint", expire_on_commit=False)
        self.session.info[_JOINED] = True
        if database.rls:
            work_as(self.session, tenant_id)

    def commit(self) -> None:
        """Make everything durable; what was to happen on commit happens then.

        Raises:
            sqlalchemy.exc.DBAPIError: the server refused, or its answer was lost.
        """
        self.session.commit()
        self._owner.ending = True
        self._transaction.commit()
        ring_after(self.session)

    def rollback(self) -> None:
        """Undo everything; harmless after a commit and on a broken connection."""
        self._owner.ending = True
        with suppress(Exception):
            self.session.close()
        with suppress(Exception):
            # Also where a commit has failed: the driver may still hold its transaction open, and locks with it.
            if (transaction := self.connection.get_transaction()) is not None:
                transaction.rollback()

    def close(self) -> None:
        """Roll back what was not committed and give the connection back; idempotent."""
        with self._lock:
            if not self._open:
                return
            self._open = False
        self.rollback()
        try:
            with suppress(Exception):
                if self._terminated:
                    self.connection.invalidate()
                self.connection.close()
        finally:
            _give(self._key)

    def cancel(self) -> bool:
        """Stop the statement that is running, from another thread; False when the attempt was closed already."""
        with self._lock:
            if not self._open:
                return False
            if self.backend is None:
                self._driver.interrupt()
            else:
                self._tell("SELECT pg_cancel_backend(:pid)")
            return True

    def terminate(self) -> bool:
        """End the connection, from another thread, so that no lock of the attempt blocks its successor.

        PostgreSQL ends the backend. SQLite's connection is closed, never rolled back: after a rollback from outside
        the handler's next INSERT would be a transaction of its own. On a user's own SQLite engine, whose connections
        cannot be closed safely while they are in use, the running statement is stopped and every later one refused.
        False when the attempt was closed already.
        """
        with self._lock:
            if not self._open:
                return False
            self._terminated = True
            if self.backend is None:
                self._end_sqlite()
            else:
                self._tell("SELECT pg_terminate_backend(:pid)")
            return True

    def _end_sqlite(self) -> None:
        if isinstance(self._driver, GuardedConnection):
            self._driver.doom()
            return
        self._info[sqlite_transactions.DOOMED] = True
        self._driver.interrupt()

    def _tell(self, statement: str) -> None:
        try:
            self._database.transact(lambda connection: connection.execute(text(statement), {"pid": self.backend}))
        except UnavailableError as exc:
            log.warning("could not reach the database to stop a job's statement: %s", exc)


def _take(path: str | None) -> tuple[str, int] | None:
    if path is None:
        return None
    key = (path, threading.get_ident())
    _held[key] += 1
    return key


def _give(key: tuple[str, int] | None) -> None:
    if key is not None:
        _held[key] -= 1
        if _held[key] <= 0:
            del _held[key]
