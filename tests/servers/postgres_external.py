"""The PostgreSQL somebody else runs, named by JFAST_TEST_POSTGRES_URL."""

from __future__ import annotations

import secrets

import psycopg

from tests.servers.errors import ServerUnavailable
from tests.servers.postgres import PostgresServer

URL_VARIABLE = "JFAST_TEST_POSTGRES_URL"


class ExternalPostgres(PostgresServer):
    """A server that is only used: the tests make databases and one role in it, and never stop it."""

    def __init__(self, url: str) -> None:
        super().__init__(url, secrets.token_urlsafe(12))
        # A role of this session alone: another session on the same server keeps its password.
        self.role = self._prefix

    def start(self) -> None:
        """Check that it answers and that the URL's role may create databases and roles."""
        try:
            self.prepare_role()
        except psycopg.Error as error:
            reason = str(error).strip()
            raise ServerUnavailable(
                f"{URL_VARIABLE} is set, but that PostgreSQL cannot be used: {reason}\n"
                f"Give it the URL of a role that may create databases and roles, or unset it: unset {URL_VARIABLE}"
            ) from None

    def stop(self) -> None:
        """Not ours to stop."""
        raise ServerUnavailable(f"the PostgreSQL of {URL_VARIABLE} is not stopped by tests; use killable_postgres")

    def kill(self) -> None:
        """Not ours to kill."""
        self.stop()

    def close(self) -> None:
        """Remove the role of this session; its databases were dropped by the tests that made them."""
        try:
            self._execute(psycopg.sql.SQL("DROP ROLE IF EXISTS {}").format(psycopg.sql.Identifier(self.role)))
        except psycopg.OperationalError:
            return  # it cannot be reached: there is nothing to clean

    @property
    def running(self) -> bool:
        """As far as we can see: whether it lets us in."""
        return self.accepts_connections()
