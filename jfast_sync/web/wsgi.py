"""Any WSGI app, with a request id, a tenant, ``/ready`` and ``/queue/stats`` around it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from werkzeug.exceptions import HTTPException

from jfast_sync.context import current_request_id
from jfast_sync.errors import ConfigError, JFastError
from jfast_sync.redact import error_text, traceback_text
from jfast_sync.web.answers import Answer
from jfast_sync.web.endpoints import Endpoints
from jfast_sync.web.problems import problem, problem_of
from jfast_sync.web.scope import Scoped, bind_tenant

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from jfast_sync.core import JFast

__all__ = ["checked_prefix", "wrap"]

log = logging.getLogger(__name__)

Tenant = Callable[["WSGIEnvironment"], "str | None"]


def wrap(core: JFast, app: WSGIApplication, *, tenant: Tenant | None = None, prefix: str = "") -> WSGIApplication:
    """Return ``app`` with request ids, tenants, ``/ready`` and ``/queue/stats``.

    Starts no thread and opens no connection.

    Args:
        core: the app whose context requests get, and whose checks ``/ready`` asks.
        app: any WSGI app.
        tenant: called with the WSGI environment of every request for ``app``; returns the tenant or None. What it
            raises is answered with 500, a werkzeug ``HTTPException`` with its own response.
        prefix: put before the two paths, for example ``"/internal"``.

    Raises:
        ConfigError: ``prefix`` is no path.
    """
    return Scoped(core, _Front(core, app, tenant, checked_prefix(prefix)))


def checked_prefix(prefix: str) -> str:
    """Return a path prefix without its last slash.

    Raises:
        ConfigError: it does not begin with a slash.
    """
    if prefix and not prefix.startswith("/"):
        raise ConfigError(f'the prefix of /ready must begin with "/", got {prefix!r}; write "/{prefix}"')
    return prefix.rstrip("/")


class _Front:
    def __init__(self, core: JFast, app: WSGIApplication, tenant: Tenant | None, prefix: str) -> None:
        self._app = app
        self._tenant = tenant
        self._prod = core.config.app.env == "prod"
        self._routes = {prefix + path: answer for path, answer in Endpoints(core).routes.items()}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        route = self._routes.get(path)
        if route is None:
            return self._pass_on(environ, start_response)
        if environ.get("REQUEST_METHOD") in ("GET", "HEAD"):
            return _send(route(path), environ, start_response)
        refused = problem(405, "Only GET is answered here.", instance=path, request_id=current_request_id())
        return _send(refused, environ, start_response, ("Allow", "GET, HEAD"))

    def _pass_on(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            if self._tenant is not None:
                bind_tenant(environ, self._tenant(environ))
        except HTTPException as exc:
            return exc(environ, start_response)
        except Exception as exc:
            log.error("the tenant callback failed\n%s", traceback_text(exc))  # noqa: TRY400 - redacted, unlike exc_info
            return _send(self._refusal(exc, environ.get("PATH_INFO", "")), environ, start_response)
        return self._app(environ, start_response)

    def _refusal(self, error: Exception, instance: str) -> Answer:
        ours = error if isinstance(error, JFastError) else JFastError(f"the tenant callback raised {error_text(error)}")
        return problem_of(ours, prod=self._prod, instance=instance, request_id=current_request_id())


def _send(
    answer: Answer, environ: WSGIEnvironment, start_response: StartResponse, *more: tuple[str, Any]
) -> Iterable[bytes]:
    body = answer.encoded()
    start_response(answer.status_line, [*answer.headers, ("Content-Length", str(len(body))), *more])
    return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]
