"""Whose rows a transaction may see: ``jfast.tenant_id``, which PostgreSQL's row-level security policies read.

It is set for one transaction and gone with it, so a pooled connection never carries it on, and set at every begin,
so a session that commits and goes on is never without it. Without a tenant it is the empty text, not unset: a value
that an earlier transaction, or the role's own defaults, left on the connection must not count.

The same statement makes the role the one that the connection began with, since policies go by the role as well, and a
``SET ROLE`` that nobody took back travels with the connection. That is not always the role that signed in: an engine's
options or its connect events may have set another. So it is what the role is when the connection is met first, and
behind a pooler, whose server connections others had before, what the server says it began with.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.orm import Session, SessionTransaction

from jfast_sync.errors import ConfigError, SchemaError
from jfast_sync.sql.failures import translated

if TYPE_CHECKING:
    from jfast_sync.sql.engine import Database

__all__ = ["POOLED", "SETTING", "begin_as", "check", "flaw", "watch", "work_as"]

log = logging.getLogger(__name__)

SETTING: Final = "jfast.tenant_id"
POOLED: Final = "jfast_pooled"  # an engine's option: the server's connections are shared with other clients
_TENANT: Final = "jfast_tenant"
_UNPROTECTED: Final = "[plugin.database] rls = true, but no table has row-level security: nothing keeps tenants apart"
_SHOWN: Final = 5  # tables named in one message
_ROLE_AT_FIRST: Final = "jfast_role"
_SET: Final = f"SELECT set_config('{SETTING}', :tenant, true)"
_SET_AGAIN: Final = text(_SET)
_MEET: Final = text(f"{_SET}, current_setting('role')")
_RETURN: Final = text(f"{_SET}, set_config('role', :role, true)")
_RESET: Final = text(f"{_SET}, set_config('role', (SELECT reset_val FROM pg_settings WHERE name = 'role'), true)")
_GOES_BACK: Final = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*ROLLBACK\b.*\bTO\b", re.IGNORECASE | re.DOTALL)
_ROLE: Final = text("SELECT rolname, rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user")
#: Protected tables, and whether the role passes by their policies: it owns them, or is a member of who does.
_TABLES: Final = text(
    "SELECT c.oid::regclass::text, pg_has_role(current_user, c.relowner, 'USAGE') AND NOT c.relforcerowsecurity "
    "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relkind IN ('r', 'p') AND c.relrowsecurity AND n.nspname NOT IN ('pg_catalog', 'information_schema') "
    "ORDER BY 1"
)


def begin_as(connection: Connection, tenant_id: str | None) -> None:
    """Make the connection's transaction, which has begun, that of a tenant; of nobody when it is None or empty.

    The role becomes the one that the connection began with.
    """
    given = {"tenant": tenant_id or ""}
    connection.execution_options(**{_TENANT: given["tenant"]})
    if connection.get_execution_options().get(POOLED):
        connection.execute(_RESET, given)
    elif (role := connection.info.get(_ROLE_AT_FIRST)) is not None:
        connection.execute(_RETURN, {**given, "role": role})
    else:
        connection.info[_ROLE_AT_FIRST] = connection.execute(_MEET, given).one()[1]


def work_as(session: Session, tenant_id: str | None) -> None:
    """Make the session's transaction, if it is in one, and all that it will begin those of a tenant.

    Of nobody when it is None or empty. What was added before is written as the tenant before, and what was loaded
    before is loaded again when it is next asked for: no row is shown or written across the change.
    """
    before, tenant = session.info.get(_TENANT), tenant_id or ""
    if before == tenant:
        return
    if before is not None:
        session.flush()
    session.info[_TENANT] = tenant
    if session.in_transaction():
        begin_as(session.connection(), tenant)
    session.expire_all()


def watch(engine: Engine) -> None:
    """Keep the tenant over savepoints, whose rollback takes a change of the setting back, however it was asked for."""
    event.listen(engine, "after_cursor_execute", _after)


def _after(connection: Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
    if _GOES_BACK.match(statement):
        tenant = connection.get_execution_options().get(_TENANT)
        if tenant is not None:
            connection.execute(_SET_AGAIN, {"tenant": tenant})


@event.listens_for(Session, "after_begin")
def _begun(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    # A savepoint goes on as whoever its transaction is. What a TaskSession begins is no such savepoint: there too
    # this fires once after every commit and rollback of the handler's.
    if _TENANT in session.info and not transaction.nested and connection.dialect.name == "postgresql":
        begin_as(connection, session.info[_TENANT])


def check(database: Database, *, strict: bool) -> None:
    """Look whether row-level security holds for the role that sessions work as.

    Args:
        database: one with ``rls``.
        strict: refuse what would show every tenant's rows; else it is a warning in the log.

    Raises:
        ConfigError: the role is a superuser or has BYPASSRLS.
        SchemaError: it owns protected tables that do not force their policies on their owner.
        UnavailableError: the database cannot be reached.
    """
    found = flaw(database)
    if strict and found.error is not None:
        raise found.error
    if found.text:
        log.warning("%s%s", found.text, " (refused in prod)" if found.error is not None else "")


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why tenants are not kept apart (empty: they are); ``error`` is what prod raises for it, None for a warning."""

    text: str = ""
    error: ConfigError | SchemaError | None = None


def flaw(database: Database) -> Flaw:
    """Say why row-level security does not hold for the role that sessions work as.

    Raises:
        UnavailableError: the database cannot be reached.
    """
    with translated(), database.engine.connect() as connection:
        role = connection.execute(_ROLE).one()
        tables = connection.execute(_TABLES).all()
    error: ConfigError | SchemaError | None = None
    passed_by = [table for table, passes in tables if passes]
    if role.rolsuper or role.rolbypassrls:
        kind = "a superuser" if role.rolsuper else "exempt from it (BYPASSRLS)"
        error = ConfigError(
            f"[plugin.database] rls = true, but the role {role.rolname!r} is {kind}: it would see every tenant's rows. "
            "Let dsn sign in as an ordinary role: CREATE ROLE app LOGIN NOSUPERUSER NOBYPASSRLS"
        )
    elif passed_by:
        error = SchemaError(
            f"[plugin.database] rls = true, but the role {role.rolname!r} owns {_listed(passed_by)}, and an owner sees "
            f"every tenant's rows. Write ALTER TABLE {passed_by[0]} FORCE ROW LEVEL SECURITY, or let dsn sign in as "
            "a role that owns nothing"
        )
    if error is not None:
        return Flaw(str(error), error)
    return Flaw("" if tables else _UNPROTECTED)


def _listed(tables: list[str]) -> str:
    more = len(tables) - _SHOWN
    return ", ".join(tables[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
