"""A PostgreSQL server for the tests: what every kind of it can do."""

from __future__ import annotations

import os
import secrets
from itertools import count
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from tests.servers.server import Server


class PostgresServer(Server):
    """A running PostgreSQL: `admin_url` leads in as a superuser, `dsn` as the ordinary role the tests work with.

    Both roles have a password; a wrong one is refused (scram-sha-256), so tests can try that too.
    """

    title = "PostgreSQL"
    role = "jfast"

    def __init__(self, admin_url: str, password: str) -> None:
        self.admin_url = admin_url
        self.password = password
        self._names = count(1)
        self._prefix = f"jfast_{os.getpid()}_{secrets.token_hex(3)}"

    @property
    def host(self) -> str:
        """Where it listens."""
        return urlsplit(self.admin_url).hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        """The TCP port it listens on; the same after every restart."""
        return urlsplit(self.admin_url).port or 5432

    def dsn(self, database: str) -> str:
        """The URL of `database` for the ordinary role, which owns the databases made by `create_database`."""
        return f"postgresql://{self.role}:{quote(self.password, safe='')}@{self.host}:{self.port}/{database}"

    def admin_dsn(self, database: str = "postgres") -> str:
        """The URL of `database` for the superuser."""
        return urlunsplit(urlsplit(self.admin_url)._replace(path=f"/{database}"))

    def create_database(self) -> str:
        """Make an empty database with a name of its own, and return the name."""
        name = f"{self._prefix}_{next(self._names)}"
        create = sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(name), sql.Identifier(self.role))
        self._execute(create)
        return name

    def drop_database(self, name: str) -> None:
        """Remove a database, cutting the connections that are still open to it."""
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def prepare_role(self) -> None:
        """Create the ordinary role, or give it this session's password where it exists."""
        role, password = sql.Identifier(self.role), sql.Literal(self.password)
        try:
            self._execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, password))
        except psycopg.errors.DuplicateObject:
            self._execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(role, password))

    def accepts_connections(self) -> bool:
        """Whether a superuser can log in now."""
        try:
            psycopg.connect(self.admin_url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.admin_url, autocommit=True, connect_timeout=10) as connection:
            connection.execute(statement)
