"""The composition root: one application's jobs, and the context that handlers and views get.

``adapters`` chooses the parts; ``app`` finds and builds the whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, MethodType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from jfast_sync import adapters, checks, context, messaging
from jfast_sync.client import QueueClient
from jfast_sync.errors import ConfigError, NotInJobError, NotProvidedError
from jfast_sync.health import Check, Health
from jfast_sync.observers import Observer, Observers
from jfast_sync.scheduling import Scheduling
from jfast_sync.tasks.registry import Registry

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication, WSGIEnvironment

    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

    from jfast_sync.config import Config
    from jfast_sync.ports import EventBus, Queue
    from jfast_sync.scheduler import Scheduler
    from jfast_sync.source import Source
    from jfast_sync.sql.engine import Database
    from jfast_sync.worker import Worker

__all__ = ["JFast"]

_OWN_NAMES: Final = frozenset({"database", "queue", "tasks", "outbox", "events"})
_FACTORIES = (FunctionType, BuiltinFunctionType, MethodType)


class JFast:
    """One application's jobs: its configuration, database, queue, tasks and everything its handlers need.

    Opens connections on first use and starts threads only when asked (:meth:`start_worker`). Close it, or use it as
    a context manager. All methods may be called from any thread.

    Args:
        config: the loaded configuration.
        tasks: the registry; a new one over the declared tasks unless given.
        engine: your own SQLAlchemy engine for the primary database; used as it is, never closed.
        queue: a backend of your own instead of the configured one.
        bus: an event bus of your own instead of the configured one.
        threads: how many worker threads will hold sessions; sizes the connection pool unless configured.
        source: how to build the same app again in a child process.
    """

    def __init__(
        self,
        config: Config,
        *,
        tasks: Registry | None = None,
        engine: Engine | None = None,
        queue: Queue | None = None,
        bus: EventBus | None = None,
        threads: int | None = None,
        source: Source | None = None,
    ) -> None:
        self.config = config
        self.source = source
        self.tasks = tasks if tasks is not None else Registry()
        self.database: Database | None = adapters.database(config, engine=engine, threads=threads)
        self.tasks.check(database_configured=self.database is not None)
        backend = queue if queue is not None else adapters.queue(config, self.database)
        self.telemetry = adapters.telemetry(config, backend)
        self.queue = QueueClient(backend, self.tasks, config, self.setup)
        self.bus = bus if bus is not None else messaging.bus(config)
        self.messages = messaging.messages(config, self.database)
        self.relaying = messaging.Relaying(self)
        self.outbox = messaging.outbox(self, has_queue=queue is not None or config.has("queue"))
        self.observers = Observers()
        self._provided: dict[str, Any] = {
            "database": self.database,
            "queue": self.queue,
            "tasks": self.tasks,
            "outbox": self.outbox,
        }
        self._factories: dict[str, Callable[[], Any]] = {}
        self._lock = threading.RLock()
        self._has_tables = self._has_queue_set_up = False
        self._closing = threading.Event()
        self._workers: list[Worker] = []
        self.scheduling = Scheduling(self)
        self.background = ""  # why nothing works in the background of this serving process; what /ready says

    # --- what an app gives and takes -------------------------------------------------------------------------

    def require(self, name: str) -> Any:
        """Return what the app has under ``name``: database, queue, tasks, outbox, or anything provided.

        Raises:
            NotProvidedError: nothing is there; the message names the line to add.
        """
        with self._lock:
            if name not in self._provided and name in self._factories:
                self._provided[name] = self._factories[name]()
            found = self._provided.get(name)
        if found is None:
            known = ", ".join(sorted({*self._provided, *self._factories}))
            raise NotProvidedError(
                f"nothing is provided as {name!r}; add jfast.provide({name!r}, ...) where the app is built. "
                f"Known: {known}"
            )
        return found

    def provide(self, name: str, object_or_factory: Any) -> None:
        """Give tasks and views an object under ``name``.

        A function, method or class is a factory: called once, without arguments, when first required. Anything else
        is the object itself (wrap a callable object as ``lambda: it``).

        Raises:
            ConfigError: the name is one of the app's own: database, queue, tasks, outbox, events.
        """
        if name in _OWN_NAMES:
            raise ConfigError(f"provide({name!r}, ...): that name is the app's own; choose another")
        with self._lock:
            self._provided.pop(name, None)
            self._factories.pop(name, None)
            if isinstance(object_or_factory, (*_FACTORIES, type)):
                self._factories[name] = object_or_factory
            else:
                self._provided[name] = object_or_factory

    def on_start(self, callback: Observer) -> Observer:
        """Call ``callback(event)`` when a job starts; usable as a decorator, like the other three."""
        return self._observe("start", callback)

    def on_success(self, callback: Observer) -> Observer:
        """Call ``callback(event)`` when a job has succeeded."""
        return self._observe("success", callback)

    def on_failure(self, callback: Observer) -> Observer:
        """Call ``callback(event)`` when an attempt has failed."""
        return self._observe("failure", callback)

    def on_dead(self, callback: Observer) -> Observer:
        """Call ``callback(event)`` when a job has become a dead letter."""
        return self._observe("dead", callback)

    def _observe(self, moment: Any, callback: Observer) -> Observer:
        if not callable(callback):
            raise ConfigError(f"on_{moment}({callback!r:.80}): give a function that takes the event")
        self.observers.add(moment, callback)
        return callback

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Open a session on the primary database: committed on normal exit, rolled back on an exception.

        Raises:
            ConfigError: no database is configured.
        """
        database = self._database_or_refuse()
        self.set_up_tables()
        with database.session() as session:
            yield session

    def _database_or_refuse(self) -> Database:
        if self.database is None:
            raise ConfigError('no database is configured; add "database" to [plugins] enabled')
        return self.database

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closing.is_set()

    @property
    def stopping(self) -> bool:
        """Whether work should end soon: this app is closing, or the running job has been told to stop."""
        if self._closing.is_set():
            return True
        try:
            return context.current_job().cancelled
        except NotInJobError:
            return False

    def wsgi(
        self, app: WSGIApplication, *, tenant: Callable[[WSGIEnvironment], str | None] | None = None, prefix: str = ""
    ) -> WSGIApplication:
        """Wrap any WSGI app: its requests get an id, a tenant and this context; ``/ready`` and ``/queue/stats`` answer.

        Args:
            app: the app to wrap. A Flask app takes ``jfast_sync.flask.JFast`` instead.
            tenant: called with the environment of every request; returns the tenant or None.
            prefix: put before the two paths, for example ``"/internal"``.
        """
        # By name, because the web room stands above this one and is loaded only where it is wanted.
        wrapped: WSGIApplication = import_module("jfast_sync.web.wsgi").wrap(self, app, tenant=tenant, prefix=prefix)
        return wrapped

    # --- start and stop --------------------------------------------------------------------------------------

    def setup(self) -> None:
        """Create or upgrade what the backend needs, once per process; in prod only check it.

        Raises:
            SchemaError: in prod, when ``jfast-sync db upgrade`` has not been run.
            UnavailableError: the server cannot be reached; call again later.
        """
        self.set_up_tables()
        if self._has_queue_set_up:
            return
        with self._lock:
            if not self._has_queue_set_up:
                adapters.set_up_queue(self.config, self.queue.backend)
                self._has_queue_set_up = True

    def set_up_tables(self) -> None:
        """As :meth:`setup`, for the database alone: it serves while a queue elsewhere is away."""
        if self._has_tables or self.database is None:
            return
        with self._lock:
            if not self._has_tables:
                adapters.set_up_tables(self.config, self.database)
                self._has_tables = True

    def worker(self, **options: Any) -> Worker:
        """Build a worker over this app's queue; see :class:`jfast_sync.worker.WorkerOptions` for the options."""
        return adapters.worker(self, **options)

    def start_worker(self, **options: Any) -> Worker:
        """Start a worker inside this process: no signal handlers; it releases its jobs on :meth:`close` and at exit.

        Call it in the process that serves, after it has forked. The relay and the scheduler start with it, where they
        are on.
        """
        worker = self.worker(**options)
        worker.start()
        self._workers.append(worker)
        self.relaying.start()
        if not worker.options.drain:
            self.start_scheduler()
        return worker

    def start(self) -> None:
        """Start what works in the background of a process that serves: the outbox's relay and the scheduler.

        Each where the configuration has it on, once per process. Under gunicorn, uWSGI and Flask's own server it is
        called by itself when a process begins to serve, under another server with its first request; call it there,
        after the fork, to have it earlier. It ends with :meth:`close`.
        """
        self.relaying.start()
        self.start_scheduler()
        self.background = ""

    @property
    def works_in_background(self) -> bool:
        """Whether a process that serves brings the outbox's messages to the queue."""
        return self.messages is not None and self.config.outbox.relay

    def start_scheduler(self) -> Scheduler | None:
        """Start the scheduler in this process, once, where the configuration has it on; None where it is off.

        Call it in the process that serves, after it has forked. It ends with :meth:`close`.
        """
        return self.scheduling.start()

    def close(self) -> None:
        """Stop workers that were started here and let go of every connection; idempotent."""
        self._closing.set()
        self.scheduling.stop()
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            worker.join()
        self._workers.clear()
        self.relaying.stop()
        self.scheduling.close()
        if self.bus is not None:
            self.bus.close()
        self.queue.backend.close()
        if self.database is not None:
            self.database.dispose()
        context.uninstall_app(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- readiness -------------------------------------------------------------------------------------------

    def checks(self) -> dict[str, Check]:
        """Return what ``/ready`` asks, by name."""
        asked = {"queue": Check(partial(checks.queue, self), critical=True)}
        if self.database is not None:
            asked["database"] = Check(partial(checks.database, self.database), critical=True)
        if self.messages is not None:
            asked["outbox"] = Check(self.relaying.health)
        if self.background:
            asked["background"] = Check(partial(Health, status="degraded", detail=self.background))
        for number, worker in enumerate(self._workers):
            asked["worker" if number == 0 else f"worker-{number + 1}"] = Check(worker.health)
        return asked
