"""What happens around a Flask view: the tenant is bound before it, the request's session ends after it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from flask import Flask, Request, Response, got_request_exception, has_request_context, request

from jfast_sync.context import Origin, current_request_id, fall_back
from jfast_sync.errors import JFastError
from jfast_sync.redact import error_text, traceback_text
from jfast_sync.web.answers import Answer
from jfast_sync.web.problems import problem, problem_of
from jfast_sync.web.scope import Scoped, bind_tenant, open_scope, origin_of, scope_of
from jfast_sync.web.session import RequestSession

if TYPE_CHECKING:
    from jfast_sync.core import JFast

__all__ = ["BLUEPRINT", "Tenant", "install", "request_session", "send", "set_tenant"]

log = logging.getLogger(__name__)

BLUEPRINT: Final = "jfast"
Tenant = Callable[[Request], "str | None"]

# On the request object, not on `g`: several requests can share one application context, and `environ` can be shared
# by an app and one mounted in it.
_SESSION: Final = "_jfast_session"
_OWN_SCOPE: Final = "_jfast_scope"


def send(answer: Answer) -> Response:
    """Make Flask's response of an answer."""
    return Response(answer.encoded(), status=answer.status, headers=answer.headers)


def request_session(core: JFast) -> RequestSession:
    """Return the present request's session holder.

    Raises:
        RuntimeError: no request is running.
    """
    if not has_request_context():
        raise RuntimeError("there is no request here, so it has no session; open one, with jf.session() as session")
    held = _held()
    if held is None:
        held = RequestSession(core)
        setattr(request, _SESSION, held)
        scope = scope_of(request.environ)
        if scope is not None:
            # The net below Flask's teardown, which the error of another teardown function ends early.
            scope.callback(_roll_back, held)
    return held


def set_tenant(tenant: object) -> None:
    """Make ``tenant`` that of the present request, and of its session where looking the tenant up has opened it.

    Raises:
        ConfigError: ``tenant`` cannot be one.
        RuntimeError: no request is running.
    """
    bind_tenant(request.environ, tenant)
    held = _held()
    if held is not None:
        held.follow_tenant()


def _held() -> RequestSession | None:
    return getattr(request, _SESSION, None)


def _roll_back(held: RequestSession) -> None:
    try:
        held.roll_back()
    except Exception as exc:
        # Nothing was committed, which is what was asked for; the answer need not change.
        log.warning("a request's session could not be rolled back: %s", error_text(exc))


def _handed_on() -> tuple[JFast, Origin] | None:
    """Return the app and the origin of the request that Flask knows of, in a thread it was copied to for example."""
    return origin_of(request.environ) if has_request_context() else None


def install(app: Flask, core: JFast, tenant: Tenant | None) -> None:
    """Put the hooks of ``core`` into ``app``: around everything else, whatever was registered earlier."""
    fall_back(_handed_on)
    hooks = _Hooks(app, core, tenant)
    first = app.before_request_funcs.setdefault(None, [])
    first.insert(0, hooks.arrive)
    app.teardown_request_funcs.setdefault(None, []).insert(0, hooks.tear_down)
    setattr(app, "handle_user_exception", hooks.noticing(app.handle_user_exception))  # noqa: B010 - mypy refuses `=`
    setattr(app, "finalize_request", hooks.finishing(app.finalize_request))  # noqa: B010 - mypy refuses `=`
    setattr(app, "wsgi_app", Scoped(core, app.wsgi_app))  # noqa: B010 - mypy refuses `=`
    if JFastError not in app.error_handler_spec[None][None]:
        app.register_error_handler(JFastError, hooks.explain)


class _Hooks:
    def __init__(self, app: Flask, core: JFast, tenant: Tenant | None) -> None:
        self._app = app
        self._core = core
        self._tenant = tenant
        self._prod = core.config.app.env == "prod"

    def arrive(self) -> None:
        if scope_of(request.environ) is None:  # a test's request context, which passed no middleware
            setattr(request, _OWN_SCOPE, open_scope(request.environ, self._core))
        # A probe belongs to no tenant, and must not fail because the callback needs the database.
        if self._tenant is not None and request.blueprint != BLUEPRINT:
            set_tenant(self._tenant(request))

    def noticing(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        """Remember that something was raised: an error handler's friendly answer does not make half a view whole."""

        def handle_user_exception(*args: Any, **kwargs: Any) -> Any:
            held = _held()
            if held is not None:
                held.failed = True
            return handle(*args, **kwargs)

        return handle_user_exception

    def finishing(self, finalize: Callable[..., Response]) -> Callable[..., Response]:
        """Commit when nothing else can fail any more: after the functions after a request, and the cookie's session."""

        def finalize_request(*args: Any, **kwargs: Any) -> Response:
            try:
                response = finalize(*args, **kwargs)
            except Exception:
                request_session(self._core).failed = True
                raise
            return self._finish(response)

        return finalize_request

    def _finish(self, response: Response) -> Response:
        held = request_session(self._core)  # also where nobody asked for one: nobody shall after this
        if held.failed or response.status_code >= 400:
            _roll_back(held)
            return response
        try:
            held.commit()
        except Exception as exc:
            self._report("the reply to the commit was lost" if held.unknown else "the commit failed", exc)
            response.close()
            return send(self._uncommitted(exc, unknown=held.unknown))
        return response

    def tear_down(self, _error: BaseException | None) -> None:
        held = _held()
        if held is not None:
            _roll_back(held)
        scope = getattr(request, _OWN_SCOPE, None)
        if scope is not None:
            delattr(request, _OWN_SCOPE)
            scope.close()

    def _report(self, what: str, error: Exception) -> None:
        """Tell the log, and the error trackers that listen to Flask's signal."""
        log.error("%s %s: %s\n%s", request.method, request.path, what, traceback_text(error))
        got_request_exception.send(self._app, exception=error)

    def _uncommitted(self, error: Exception, *, unknown: bool) -> Answer:
        because = "The reason is in the log of this service." if self._prod else error_text(error)
        outcome = (
            "The request was carried out, but the reply to its commit was lost: it is not known whether everything was "
            "written or nothing."
            if unknown
            else "The request was carried out but could not be committed; nothing was written."
        )
        return problem(
            500,
            f"{outcome} {because}",
            instance=request.path,
            request_id=current_request_id(),
            kind="commit-unknown" if unknown else "commit",
            title="The reply to the commit was lost" if unknown else "The commit failed",
        )

    def explain(self, error: JFastError) -> Response:
        answer = problem_of(error, prod=self._prod, instance=request.path, request_id=current_request_id())
        if answer.status >= 500:
            self._report("failed", error)
        return send(answer)
