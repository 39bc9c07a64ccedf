"""What a database holds: asked before a schema step changes it, on both dialects."""

from __future__ import annotations

from sqlalchemy import Connection, text

__all__ = ["columns", "exists", "is_postgres", "run"]


def is_postgres(connection: Connection) -> bool:
    return connection.dialect.name == "postgresql"


def exists(connection: Connection, name: str) -> bool:
    """Say whether there is a table, index or sequence of this name."""
    if is_postgres(connection):
        return bool(connection.execute(text("SELECT to_regclass(:name) IS NOT NULL"), {"name": name}).scalar())
    return bool(
        connection.execute(text("SELECT count(*) FROM sqlite_master WHERE name = :name"), {"name": name}).scalar()
    )


def columns(connection: Connection, table: str) -> set[str]:
    """Return the names of a table's columns; none where there is no such table."""
    if is_postgres(connection):
        asked = text(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(:name) AND attnum > 0 AND NOT attisdropped"
        )
        return set(connection.execute(asked, {"name": table}).scalars())
    return set(connection.execute(text("SELECT name FROM pragma_table_info(:name)"), {"name": table}).scalars())


def run(connection: Connection, statement: str) -> None:
    connection.exec_driver_sql(statement)
