"""Flask apps for the tests of the HTTP side: jobs in memory, and a session that writes down what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flask import Flask

from jfast_sync.flask import JFast

MEMORY: dict[str, dict[str, object]] = {
    "plugins": {"enabled": ("observability", "queue")},
    "queue": {"backend": "memory"},
}


def memory_app(*, env: str = "local", **options: Any) -> tuple[Flask, JFast]:
    """Return a Flask app whose jobs are in memory; in `env` "prod" over a database nobody connects to."""
    overrides: dict[str, dict[str, object]] = MEMORY if env != "prod" else {"app": {"env": "prod"}}
    app = Flask("shop")
    jf = JFast(app, overrides={**overrides, **options.pop("overrides", {})}, **options)
    return app, jf


@dataclass
class Ledger:
    """What the sessions of a test's app were told."""

    events: list[str] = field(default_factory=list)
    commit_error: Exception | None = None

    @contextmanager
    def session(self) -> Iterator[object]:
        self.events.append("open")
        try:
            yield object()
            if self.commit_error is not None:
                self.events.append("commit failed")
                raise self.commit_error
        except Exception as exc:
            if exc is not self.commit_error:
                self.events.append("rollback")
            raise
        else:
            self.events.append("commit")
        finally:
            self.events.append("close")


def ledger_app(**options: Any) -> tuple[Flask, JFast, Ledger]:
    """Return a Flask app whose sessions only keep a ledger."""
    app, jf = memory_app(**options)
    ledger = Ledger()
    app.extensions["jfast"].session = ledger.session
    return app, jf, ledger
