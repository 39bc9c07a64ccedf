"""Who may end a transaction: a handler works inside the worker's, and only the worker commits or rolls it back.

A session's own ``commit()`` and ``rollback()`` are savepoints there. What goes past the session - its connection's
``commit()``, a ``COMMIT`` as text - would make writes durable before the fence has held, and is refused. So it is in
a request's session and ``jf.session()``: their writes would stay under an answer that says they do not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, event

from jfast_sync.errors import ConfigError, UnsupportedError

__all__ = ["Owner", "own", "refuse_autocommit", "watch"]

_OWNER: Final = "jfast_owner"
_LATER: Final = r"COMMIT|ABORT|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:WORK\s+|TRANSACTION\s+)?TO\b)"
_ENDS: Final = re.compile(rf"(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:END|{_LATER})\b", re.IGNORECASE | re.DOTALL)
#: Behind another statement, which PostgreSQL takes together where there are no parameters. END closes bodies as well.
_ENDS_LATER: Final = re.compile(rf";\s*(?:{_LATER})\b", re.IGNORECASE)
_QUOTED: Final = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|--[^\n]*|/\*.*?\*/", re.DOTALL
)
_REFUSAL: Final = (
    "the transaction of a TaskSession is the worker's: it commits when the handler has returned and rolls back when it "
    "raises; use session.commit() and session.rollback(), which are savepoints inside it"
)
_AUTOCOMMIT: Final = (
    "the engine is in AUTOCOMMIT, where every statement is durable by itself and no transaction can hold a job "
    "together with its effects; give jfast-sync an engine without it"
)


@dataclass(slots=True)
class Owner:
    """The right to end a connection's transaction; ``ending`` while its holder does so, ``sent`` when COMMIT was.

    ``others_roll_back``: who rolls the connection back itself harms nobody, for the holder's commit fails then.
    """

    ending: bool = False
    sent: bool = False
    refusal: str = _REFUSAL
    others_roll_back: bool = False


def own(connection: Connection, owner: Owner | None = None) -> Owner:
    """Let nobody end the connection's transaction but the holder of what is returned."""
    owner = owner or Owner()
    connection.execution_options(**{_OWNER: owner})
    return owner


def watch(engine: Engine) -> None:
    """Have an engine's connections keep to this, and refuse to begin a transaction that would be none."""
    event.listen(engine, "begin", _refuse_autocommit)
    event.listen(engine, "commit", _note_commit)
    event.listen(engine, "rollback", _refuse_rollback)
    event.listen(engine, "before_cursor_execute", _refuse_text)


def refuse_autocommit(engine: Engine) -> None:
    """Refuse an engine that was made for AUTOCOMMIT, before anything connects.

    Raises:
        ConfigError: it was.
    """
    made_for = getattr(engine.dialect, "_on_connect_isolation_level", None)
    if "AUTOCOMMIT" in (made_for, engine.get_execution_options().get("isolation_level")):
        raise ConfigError(_AUTOCOMMIT)


def _refuse_autocommit(connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
    if getattr(driver, "autocommit", False) is True:
        raise ConfigError(_AUTOCOMMIT)


def _owner(connection: Connection) -> Owner | None:
    owner: Owner | None = connection.get_execution_options().get(_OWNER)
    return owner


def _refuse_others(owner: Owner | None) -> None:
    if owner is not None and not owner.ending:
        raise UnsupportedError(owner.refusal)


def _note_commit(connection: Connection) -> None:
    owner = _owner(connection)
    _refuse_others(owner)
    if owner is not None:
        owner.sent = True


def _refuse_rollback(connection: Connection) -> None:
    owner = _owner(connection)
    if owner is not None and not owner.others_roll_back:
        _refuse_others(owner)


def _refuse_text(connection: Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
    if _ends(statement):
        _refuse_others(_owner(connection))


def _ends(statement: str) -> bool:
    """Say whether a statement, or one of several in a text, ends the transaction it is run in."""
    if _ENDS.match(statement):
        return True
    return ";" in statement and _ENDS_LATER.search(_QUOTED.sub(" ", statement)) is not None
