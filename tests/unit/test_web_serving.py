"""Who is taken for a server, and which apps are started when one is."""

from __future__ import annotations

import gc
import logging
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from werkzeug.test import Client, EnvironBuilder
from werkzeug.wrappers import Response

from jfast_sync import JFast
from jfast_sync.config import load_config
from jfast_sync.tasks.registry import Registry
from jfast_sync.web import serving
from jfast_sync.web.wsgi import wrap


class App(JFast):
    """An app that counts its starts, and may fail them."""

    starts = 0
    error: Exception | None = None

    def start(self) -> None:
        self.starts += 1
        if self.error is not None:
            raise self.error
        self.background = ""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the apps of other tests out."""
    for name in ("_apps", "_begun", "_tried"):
        monkeypatch.setattr(serving, name, type(getattr(serving, name))())


def made() -> tuple[App, Any]:
    app = App(load_config(environ={}), tasks=Registry())
    return app, wrap(app, Response("fine"))


def ask(wrapped: Any, **marks: Any) -> None:
    environ = EnvironBuilder("/").get_environ()
    wrapped({**environ, **marks}, lambda *_: lambda _: None)


@pytest.mark.parametrize(
    "marks",
    [
        {"SERVER_SOFTWARE": "WSGIServer/0.2"},
        {"uwsgi.version": b"2.0"},
        {"REMOTE_ADDR": "127.0.0.1"},  # asgiref, Hypercorn, Uvicorn
        {"asgi.scope": {"type": "http"}},  # a2wsgi on a Unix socket
        {"wsgi.multithread": True, "wsgi.multiprocess": True},  # Uvicorn on one
    ],
)
def test_a_servers_request_starts_the_app_once(marks: dict[str, Any]) -> None:
    app, wrapped = made()
    ask(wrapped, **marks)
    ask(wrapped, **marks)
    assert app.starts == 1
    app.close()


def test_a_tests_request_starts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    app, wrapped = made()
    Client(wrapped).get("/", environ_base={"REMOTE_ADDR": "127.0.0.1"})
    ask(wrapped, **{"paste.testing": True, "REMOTE_ADDR": "127.0.0.1"})
    assert (app.starts, app.background, caplog.text) == (0, "", "")
    app.close()


def test_a_request_of_nobody_known_starts_nothing_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    app, wrapped = made()
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    for _ in range(2):
        wrapped(dict(environ), lambda *_: lambda _: None)
    assert app.starts == 0
    assert caplog.text.count("call jf.start()") == 1
    assert app.checks()["background"]().status == "degraded"
    app.start()
    assert "background" not in app.checks()
    app.close()


def test_an_app_that_comes_after_one_that_went_is_started() -> None:
    first, first_wrapped = made()
    second, second_wrapped = made()
    ask(first_wrapped, SERVER_SOFTWARE="x")
    assert (first.starts, second.starts) == (1, 1)
    second.close()
    del second, second_wrapped
    gc.collect()
    third, wrapped = made()
    ask(wrapped, SERVER_SOFTWARE="x")
    assert (first.starts, third.starts) == (1, 1)
    first.close()
    third.close()


def test_a_start_that_failed_is_tried_again_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, wrapped = made()
    app.error = OSError("no threads left")
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            ask(wrapped, SERVER_SOFTWARE="x")
    assert app.starts == 1, "not with every request"
    assert "no threads left" in caplog.text
    assert "no threads left" in app.checks()["background"]().detail
    monkeypatch.setattr(serving, "_PAUSE", 0.0)
    serving._tried.clear()
    app.error = None
    ask(wrapped, SERVER_SOFTWARE="x")
    assert app.starts == 2
    assert "background" not in app.checks()
    app.close()


def test_a_closed_app_is_not_started() -> None:
    app, wrapped = made()
    app.close()
    ask(wrapped, SERVER_SOFTWARE="x")
    assert app.starts == 0
