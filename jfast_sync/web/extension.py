"""The Flask extension: one object for the module, one app's jobs behind it per Flask app."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from flask import Blueprint, Flask, Response, current_app, has_app_context, request

from jfast_sync.app import build
from jfast_sync.config import Config, load_config
from jfast_sync.errors import ConfigError
from jfast_sync.web import hooks
from jfast_sync.web.endpoints import READY, STATS, Endpoints
from jfast_sync.web.wsgi import checked_prefix

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

    from jfast_sync.client import QueueClient
    from jfast_sync.core import JFast as Core
    from jfast_sync.observers import Observer
    from jfast_sync.outbox.outbox import Outbox
    from jfast_sync.source import Overrides
    from jfast_sync.tasks.registry import Registry

__all__ = ["JFast", "get_session"]

_NAME: Final = "jfast"


class JFast:
    """Jobs for a Flask app: ``jf = JFast(app)``, or ``jf = JFast()`` and ``jf.init_app(app)`` in a factory.

    Every Flask app gets an app of its own, ``app.extensions["jfast"]``; the attributes of this object are those of the
    current Flask app's: ``jf.queue``, ``jf.outbox``, ``jf.tasks``, ``jf.session()``, ``jf.require(name)`` and the rest.
    Nothing is connected and no thread is started before it is needed.

    Args:
        app: the Flask app; None to call :meth:`init_app` later.
        config: a loaded configuration, or the path of a ``jfast.toml`` or its folder. None takes the one in the
            current folder, or the defaults.
        overrides: values over file and environment, by table: ``{"queue": {"backend": "memory"}}``. The Flask app's own
            ``app.config["JFAST"]``, of the same form, wins over them.
        tenant: called with the request; returns the tenant it belongs to, or None. It is called before every view and
            every ``before_request`` function of yours; where the tenant is known only later, call :meth:`set_tenant`.
            Without it no request has a tenant: a header alone is never believed.
        url_prefix: put before ``/ready`` and ``/queue/stats``.
        engine: your own SQLAlchemy engine for the primary database; used as it is, never closed.
        imports: modules that declare tasks, besides ``modules/*/tasks.py``.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        config: Config | str | Path | None = None,
        overrides: Overrides | None = None,
        tenant: hooks.Tenant | None = None,
        url_prefix: str = "",
        engine: Engine | None = None,
        imports: tuple[str, ...] = (),
    ) -> None:
        self._config = config
        self._overrides: Overrides = overrides or {}
        self._tenant = tenant
        self._url_prefix = url_prefix
        self._engine = engine
        self._imports = imports
        self._asked: list[Callable[[Core], Any]] = []
        self._apps: WeakSet[Flask] = WeakSet()
        if app is not None:
            self.init_app(app)

    def init_app(
        self,
        app: Flask,
        *,
        config: Config | str | Path | None = None,
        overrides: Overrides | None = None,
        tenant: hooks.Tenant | None = None,
        url_prefix: str | None = None,
        engine: Engine | None = None,
        imports: tuple[str, ...] | None = None,
    ) -> None:
        """Give ``app`` its jobs; arguments given here win over the constructor's.

        Raises:
            ConfigError: the configuration is wrong, or ``app`` has an extension of this kind already.
            DeclarationError: a tasks.py cannot be imported, or a task is declared wrongly.
        """
        if _NAME in app.extensions:
            raise ConfigError(f"the Flask app {app.name!r} has jfast already; call init_app once per app")
        prefix = checked_prefix(self._url_prefix if url_prefix is None else url_prefix)
        core = build(
            _load(self._config if config is None else config, [self._overrides, overrides, app.config.get("JFAST")]),
            imports=self._imports if imports is None else imports,
            engine=self._engine if engine is None else engine,
        )
        for ask in self._asked:
            ask(core)
        hooks.install(app, core, tenant or self._tenant)
        app.register_blueprint(_blueprint(core), url_prefix=prefix or None)
        app.extensions[_NAME] = core
        self._apps.add(app)

    # --- the current app's ------------------------------------------------------------------------------------

    @property
    def core(self) -> Core:
        """The jobs of the current Flask app; outside an application context, of the only app there is.

        Raises:
            RuntimeError: there is none, or more than one.
        """
        if has_app_context():
            return _current()
        apps = list(self._apps)
        if len(apps) != 1:
            todo = "call jf.init_app(app) first" if not apps else "it has several; use it in `with app.app_context():`"
            raise RuntimeError(f"this JFast has no single Flask app to work for: {todo}")
        only: Core = apps[0].extensions[_NAME]
        return only

    @property
    def queue(self) -> QueueClient:
        """Enqueue in transactions of its own, count, reach dead letters."""
        return self.core.queue

    @property
    def outbox(self) -> Outbox:
        """Enqueue in a session's transaction: ``jf.outbox.enqueue(jf.request_session, job)``."""
        return self.core.outbox

    @property
    def tasks(self) -> Registry:
        """The tasks the app knows."""
        return self.core.tasks

    @property
    def config(self) -> Config:
        """The configuration as it was loaded."""
        return self.core.config

    def session(self) -> AbstractContextManager[Session]:
        """Open a session of its own: committed on normal exit, rolled back on an exception."""
        return self.core.session()

    def require(self, name: str) -> Any:
        """Return what the app has under ``name``.

        Raises:
            NotProvidedError: nothing is there; the message names the line to add.
        """
        return self.core.require(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            core = self.core
        except RuntimeError as exc:
            raise AttributeError(f"{name}: {exc}") from exc
        return getattr(core, name)

    # --- the request's ----------------------------------------------------------------------------------------

    @property
    def request_session(self) -> Session:
        """The present request's session on the primary database, the same one all through the request.

        Committed after the view and every ``after_request`` function, before the answer leaves; a failed commit is
        answered 500. Rolled back instead if anything was raised or the answer's status is 400 or above. A streamed body
        begins after the commit and opens a session of its own.

        Raises:
            RuntimeError: no request is running, or its session has ended.
        """
        return hooks.request_session(self.core).get()

    def set_tenant(self, tenant: str | None) -> None:
        """Make ``tenant`` the current tenant for the rest of the present request.

        Raises:
            ConfigError: ``tenant`` is not 1 to 128 plain characters.
            RuntimeError: no request is running, or another thread answers it.
        """
        hooks.set_tenant(tenant)

    # --- for every app, those to come included ----------------------------------------------------------------

    def provide(self, name: str, object_or_factory: Any) -> None:
        """Give tasks and views an object under ``name``; before or after :meth:`init_app`."""
        self._ask(lambda core: core.provide(name, object_or_factory))

    def on_start(self, callback: Observer) -> Observer:
        """Call ``callback(event)`` when a job starts; usable as a decorator, like the other three."""
        return self._observe("on_start", callback)

    def on_success(self, callback: Observer) -> Observer:
        """Call ``callback(event)`` when a job has succeeded."""
        return self._observe("on_success", callback)

    def on_failure(self, callback: Observer) -> Observer:
        """Call ``callback(event)`` when an attempt has failed."""
        return self._observe("on_failure", callback)

    def on_dead(self, callback: Observer) -> Observer:
        """Call ``callback(event)`` when a job has become a dead letter."""
        return self._observe("on_dead", callback)

    def _observe(self, moment: str, callback: Observer) -> Observer:
        self._ask(lambda core: getattr(core, moment)(callback))
        return callback

    def _ask(self, ask: Callable[[Core], Any]) -> None:
        self._asked.append(ask)
        for app in list(self._apps):
            ask(app.extensions[_NAME])


def get_session() -> Session:
    """Return the present request's session; see :attr:`JFast.request_session`.

    Raises:
        RuntimeError: no request is running, its app has no jfast, or its session has ended.
    """
    return hooks.request_session(_current()).get()


def _current() -> Core:
    if not has_app_context():
        raise RuntimeError("no Flask app is running here")
    core: Core | None = current_app.extensions.get(_NAME)
    if core is None:
        raise RuntimeError(f"the Flask app {current_app.name!r} has no jfast: call JFast().init_app(app)")
    return core


def _load(config: Config | str | Path | None, layers: list[Overrides | None]) -> Config:
    merged: dict[str, dict[str, object]] = {}
    for layer in layers:
        for table, values in (layer or {}).items():
            merged.setdefault(table, {}).update(values)
    if not isinstance(config, Config):
        return load_config(config, overrides=merged)
    if merged:
        raise ConfigError(
            f"values for {', '.join(sorted(merged))} were given beside a configuration that is loaded already; pass "
            "them to load_config(overrides=...)"
        )
    return config


def _blueprint(core: Core) -> Blueprint:
    blueprint = Blueprint(hooks.BLUEPRINT, __name__)
    endpoints = Endpoints(core)

    @blueprint.get(READY)
    def ready() -> Response:
        return hooks.send(endpoints.ready())

    @blueprint.get(STATS)
    def stats() -> Response:
        return hooks.send(endpoints.stats(request.path))

    return blueprint
