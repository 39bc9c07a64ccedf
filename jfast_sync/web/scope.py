"""One request's context, from the first line of the server's call to the last chunk of the body.

A WSGI middleware rather than hooks of a framework: a ``with`` block around the call cannot be skipped by another hook
that fails, covers errors that the framework answers by itself, and leaves nothing behind on the thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from jfast_sync.context import Origin, bind, bind_app, origin
from jfast_sync.web.arrival import REQUEST_ID, arrival, checked_tenant
from jfast_sync.web.serving import begin_for, start_when_serving

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from jfast_sync.core import JFast

__all__ = ["Scoped", "bind_tenant", "open_scope", "origin_of", "scope_of"]

_KEY: Final = "jfast_sync.scope"
_ORIGIN: Final = "jfast_sync.origin"  # stays when the scope is closed: a thread may go on with the request


class Scope(ExitStack):
    """What a request has bound on the thread that answers it, closed when its answer is made."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()


@dataclass(frozen=True, slots=True)
class _Handed:
    core: JFast
    origin: Origin
    thread: int


def scope_of(environ: WSGIEnvironment) -> Scope | None:
    """Return what the request has bound, and what is to be closed when its answer is made; None outside a scope."""
    return environ.get(_KEY)


def origin_of(environ: WSGIEnvironment) -> tuple[JFast, Origin] | None:
    """Return the app and the origin of a request in a thread that it was handed to, also when it is answered.

    None in the thread that answers it, where both are bound for as long as they hold: a framework may leave the request
    there, behind a stream that was abandoned for example. None as well for a request that never had a scope.
    """
    found: _Handed | None = environ.get(_ORIGIN)
    return (found.core, found.origin) if found is not None and found.thread != threading.get_ident() else None


def open_scope(environ: WSGIEnvironment, core: JFast) -> Scope:
    """Bind the request's origin and its app to this thread until the stack is closed.

    Inside another scope of the same request it begins with that one's origin, which is as it was afterwards.
    """
    outer = scope_of(environ)
    stack = Scope()
    if outer is None:
        stack.callback(environ.pop, _KEY, None)
    else:
        stack.callback(environ.update, {_KEY: outer, _ORIGIN: environ[_ORIGIN]})
    environ[_KEY] = stack
    stack.enter_context(bind_app(core))
    _bind(environ, core, origin() if outer is not None else arrival(environ))
    return stack


def _bind(environ: WSGIEnvironment, core: JFast, new: Origin) -> None:
    environ[_ORIGIN] = _Handed(core, new, environ[_KEY].thread)
    environ[_KEY].enter_context(bind(new))


def bind_tenant(environ: WSGIEnvironment, tenant: object) -> None:
    """Make ``tenant`` the current tenant for the rest of the request.

    Raises:
        ConfigError: ``tenant`` cannot be one.
        RuntimeError: the request has no scope, or another thread answers it.
    """
    scope = scope_of(environ)
    if scope is None:
        raise RuntimeError("a tenant is bound inside a request only")
    if scope.thread != threading.get_ident():
        # It would stay on that thread, for whatever it does next.
        raise RuntimeError("a tenant is bound by the thread that answers the request only")
    _bind(environ, environ[_ORIGIN].core, replace(origin(), tenant_id=checked_tenant(tenant)))


class Scoped:
    """A WSGI app whose every request runs in a scope of its own, and whose every answer carries its request id.

    Inside the scope of another one (an app mounted in an app) the request keeps its id and tenant and gets the inner
    app. A tenant that the inner app finds is the inner app's alone.
    """

    def __init__(self, core: JFast, app: WSGIApplication) -> None:
        self._core = core
        self._app = app
        start_when_serving(core)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        inner = scope_of(environ) is not None
        if not inner:
            begin_for(environ)
        with open_scope(environ, self._core):
            return self._bound(environ, self._app(environ, start_response if inner else _answering(start_response)))

    def _bound(self, environ: WSGIEnvironment, body: Iterable[bytes]) -> Iterable[bytes]:
        """Let a body that is still being made run in the same context; leave the others to the server as they are."""
        wrapper = environ.get("wsgi.file_wrapper")
        if isinstance(body, list | tuple) or (isinstance(wrapper, type) and isinstance(body, wrapper)):
            return body
        return _Body(body, self._core)


def _answering(start_response: StartResponse) -> StartResponse:
    request_id = origin().request_id or ""

    def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Callable[[bytes], object]:
        others = [header for header in headers if header[0].lower() != REQUEST_ID.lower()]
        return start_response(status, [*others, (REQUEST_ID, request_id)], *error)

    return start


class _Body:
    """A response's body, each chunk of which is made in the request's context."""

    def __init__(self, body: Iterable[bytes], core: JFast) -> None:
        self._body = body
        self._core = core
        self._origin = origin()
        self._chunks: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with bind_app(self._core), bind(self._origin):
            if self._chunks is None:
                self._chunks = iter(self._body)
            return next(self._chunks)

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close is not None:
            with bind_app(self._core), bind(self._origin):
                close()
