"""One AMQP connection, driven by whichever thread holds it: every call has a deadline, every failure is ours.

pika's connections belong to one thread. Here that is the thread that is inside :meth:`Connection.run_until` or
:meth:`Connection.pump`; the callers hold a lock, or are the one thread that owns the connection. Nothing runs in the
background, so a connection that is used seldom is looked at before it is used again: :meth:`Connection.is_usable`.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pika
from pika import exceptions
from pika.adapters.select_connection import IOLoop

from jfast_sync.errors import ConfigError, JFastError, SchemaError, UnavailableError
from jfast_sync.loop import Deadline
from jfast_sync.redact import error_text, mask_dsn

__all__ = ["BOUND", "Channel", "Connection", "MissingError", "Server", "failure"]

if logging.getLogger("pika").level == logging.NOTSET:
    # Every failure reaches our callers; pika logs each of them four times more, as errors.
    logging.getLogger("pika").setLevel(logging.CRITICAL)

BOUND: Final = 8.0  # seconds that one call to the broker may take
_CONNECT: Final = 4.0
_OLDEST: Final = (3, 10)
_HEARTBEAT: Final = 60


class MissingError(UnavailableError):
    """A queue or exchange is not there; declaring it helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where the broker is, and how to sign in.

    Args:
        url: ``amqp://user:password@host:port/vhost``; ``amqps://`` is TLS.
        ssl_cafile, ssl_certfile, ssl_keyfile: PEM files; None takes the system's authorities and no certificate.
        heartbeat: seconds; a peer that is silent for two of them is taken for dead.
    """

    url: str
    ssl_cafile: Path | None = None
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    heartbeat: int = _HEARTBEAT

    def parameters(self, name: str) -> pika.URLParameters:
        """Return pika's parameters for a connection called ``name`` in the broker's listings.

        Raises:
            ConfigError: the URL or a TLS file cannot be used.
        """
        try:
            made = pika.URLParameters(self.url)
            if self.url.startswith("amqps"):
                context = ssl.create_default_context(cafile=str(self.ssl_cafile) if self.ssl_cafile else None)
                if self.ssl_certfile is not None:
                    context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
                made.ssl_options = pika.SSLOptions(context, made.host)
        except (ValueError, OSError) as exc:  # ssl.SSLError is an OSError
            raise ConfigError(f"[plugin.queue] rabbitmq_url {self.shown} cannot be used: {error_text(exc)}") from exc
        made.heartbeat = self.heartbeat
        made.connection_attempts = 1
        made.socket_timeout = _CONNECT
        made.stack_timeout = _CONNECT
        made.blocked_connection_timeout = None  # a publisher that is held back has a deadline of its own
        made.client_properties = {"connection_name": f"jfast-sync {name}"}
        return made

    @property
    def vhost(self) -> str:
        """The virtual host that the URL names."""
        return str(pika.URLParameters(self.url).virtual_host)

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return mask_dsn(self.url)


class Connection:
    """An open connection, with at most a few channels; when it fails it is thrown away and another one made."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self.blocked: str | None = None  # why the broker holds publishers back; None where it does not
        self._error: BaseException | None = None
        self._loop = IOLoop()
        self._loop.activate_poller()
        self._amqp: Any = pika.SelectConnection(
            server.parameters(name),
            on_open_callback=lambda _connection: None,
            on_open_error_callback=self._failed,
            on_close_callback=self._failed,
            custom_ioloop=self._loop,
        )
        self._amqp.add_on_connection_blocked_callback(self._on_blocked)
        self._amqp.add_on_connection_unblocked_callback(self._on_unblocked)
        self._ended = False
        try:
            self.run_until(lambda: self._amqp.is_open, Deadline(_CONNECT + 1))
            self._check_version()
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        return not self._ended and self._error is None and bool(self._amqp.is_open)

    def is_usable(self) -> bool:
        """Read what has arrived since the last use, and say whether the connection still stands."""
        if self.is_open:
            self.pump(0)
        return self.is_open

    def pump(self, seconds: float) -> None:
        """Let whatever happens happen: waits up to so many seconds for the first thing, then returns."""
        timer = self._loop.call_later(max(seconds, 0.0), lambda: None)
        try:
            self._loop.poll()
            self._loop.process_timeouts()
        except (exceptions.AMQPError, OSError) as exc:
            self._error = self._error or exc
        finally:
            self._loop.remove_timeout(timer)

    def run_until(self, done: Callable[[], bool], deadline: Deadline) -> None:
        """Drive the connection until ``done`` says so.

        Raises:
            UnavailableError: the connection failed, or the deadline passed.
        """
        while not done():
            if self._error is not None:
                raise failure(self._error, self._server)
            if deadline.passed:
                why = f"it holds back publishers: {self.blocked}" if self.blocked else "it does not answer"
                raise UnavailableError(f"RabbitMQ at {self._server.shown}: {why}")
            self.pump(deadline.remaining(1.0))

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Have the driving thread run something; from any thread. Also ends a :meth:`pump`."""
        self._loop.add_callback_threadsafe(callback)

    def channel(self, deadline: Deadline) -> Channel:
        """Open a channel."""
        return Channel(self, self._amqp, deadline)

    def close(self) -> None:
        """Say goodbye, briefly, and let go of the socket; idempotent."""
        if self._ended:
            return
        self._ended = True
        try:
            if self._amqp.is_open:
                self._amqp.close()
            deadline = Deadline(0.5)
            while not self._amqp.is_closed and self._error is None and not deadline.passed:
                self.pump(deadline.remaining(0.1))
        except (exceptions.AMQPError, OSError, RuntimeError):
            pass
        self._drop()

    def abandon(self) -> None:
        """Let go without a word: in a child process the socket is the parent's, and must not be spoken to."""
        self._ended = True

    def _drop(self) -> None:
        if not self._amqp.is_closed:
            try:
                self._amqp._terminate_stream(None)  # nothing public ends a connection that does not answer
                self.pump(0)
            except Exception:
                logging.getLogger(__name__).debug("a connection could not be ended", exc_info=True)
        self._loop.deactivate_poller()
        self._loop.close()

    def _failed(self, _connection: object, error: BaseException) -> None:
        self._error = self._error or error

    def _on_blocked(self, _connection: object, frame: Any) -> None:
        self.blocked = str(getattr(frame.method, "reason", "")) or "an alarm"

    def _on_unblocked(self, _connection: object, _frame: object) -> None:
        self.blocked = None

    def _check_version(self) -> None:
        properties = getattr(self._amqp, "server_properties", None) or {}
        text = properties.get("version", b"")
        version = text.decode() if isinstance(text, bytes) else str(text)
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if numbers and numbers < _OLDEST:
            raise SchemaError(f"RabbitMQ {version} at {self._server.shown} is too old: 3.10 or newer is needed")


class Channel:
    """A channel whose calls are waited for.

    ``error`` is why the broker closed it, None while it stands.
    """

    def __init__(self, connection: Connection, amqp: Any, deadline: Deadline) -> None:
        self._connection = connection
        self.error: BaseException | None = None
        opened: list[object] = []
        self.amqp: Any = amqp.channel(on_open_callback=opened.append)
        self.amqp.add_on_close_callback(self._closed)
        self.wait(lambda: bool(opened), deadline)

    @property
    def is_open(self) -> bool:
        return self.error is None and self._connection.is_open and bool(self.amqp.is_open)

    def call(self, method: str, deadline: Deadline, **arguments: Any) -> Any:
        """Call a method of the channel that is answered; return the answer's method frame."""
        answers: list[Any] = []
        if self.error is not None:
            raise failure(self.error)
        getattr(self.amqp, method)(**arguments, callback=answers.append)
        self.wait(lambda: bool(answers), deadline)
        return answers[0].method

    def wait(self, done: Callable[[], bool], deadline: Deadline) -> None:
        """Drive the connection until ``done``, the channel's end or the deadline."""
        self._connection.run_until(lambda: done() or self.error is not None, deadline)
        if self.error is not None and not done():
            raise failure(self.error)

    def close(self) -> None:
        """Close it; what it holds unacknowledged goes back to where it was."""
        if self.is_open:
            self.amqp.close()
            try:
                self.wait(lambda: self.error is not None, Deadline(BOUND))
            except JFastError:
                return

    def _closed(self, _channel: object, error: BaseException) -> None:
        self.error = error


def failure(error: BaseException, server: Server | None = None) -> JFastError:
    """Return our error for one of pika's."""
    where = f"RabbitMQ at {server.shown}" if server is not None else "RabbitMQ"
    cause = _cause(error)
    match cause:
        case exceptions.ProbableAuthenticationError() | exceptions.AuthenticationError():
            return UnavailableError(f"{where} refuses the user or password of rabbitmq_url")
        case exceptions.ProbableAccessDeniedError():
            return UnavailableError(f"{where} refuses the virtual host of rabbitmq_url to this user")
        case exceptions.ChannelClosedByBroker(reply_code=403 | 406):
            return SchemaError(f"{where} refuses: {error_text(cause)}")
        case exceptions.ChannelClosedByBroker(reply_code=404):
            return MissingError(f"{where} does not have it: {error_text(cause)}")
        case _:
            return UnavailableError(f"{where} cannot be reached: {error_text(cause)}")


def _cause(error: BaseException) -> BaseException:
    """Return the reason inside pika's wrappers, some of which print as nothing."""
    seen = error
    for _ in range(10):
        inner: Any = getattr(seen, "exceptions", None) or getattr(seen, "exception", None)
        if isinstance(inner, list | tuple):
            inner = inner[-1] if inner else None
        if not isinstance(inner, BaseException):
            inner = seen.args[0] if seen.args and isinstance(seen.args[0], BaseException) else None
        if inner is None:
            return seen
        seen = inner
    return seen
