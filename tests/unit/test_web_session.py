"""The request's session: committed before the answer leaves, rolled back otherwise, closed always."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask, Response, abort, got_request_exception, redirect, stream_with_context

from jfast_sync.flask import get_session
from tests.unit.web_apps import Ledger, ledger_app

Answering = Callable[[], Any]


def serve(view: Answering, **options: Any) -> tuple[Flask, Ledger]:
    app, jf, ledger = ledger_app(**options)

    def opened() -> Any:
        assert jf.request_session is get_session()
        return view()

    app.add_url_rule("/", view_func=opened)
    return app, ledger


def test_a_request_that_asks_for_none_opens_none() -> None:
    app, _, ledger = ledger_app()
    app.get("/")(lambda: "")
    app.test_client().get("/")
    assert ledger.events == []


@pytest.mark.parametrize("view", [lambda: "fine", lambda: ("made", 201), lambda: redirect("/elsewhere")])
def test_an_answer_below_400_commits(view: Answering) -> None:
    app, ledger = serve(view)
    assert app.test_client().get("/").status_code < 400
    assert ledger.events == ["open", "commit", "close"]


@pytest.mark.parametrize(
    "view",
    [
        lambda: ("no", 400),
        lambda: ("no", 503),
        lambda: abort(404),
        lambda: abort(redirect("/elsewhere")),
        lambda: 1 / 0,
    ],
)
def test_an_error_answer_and_anything_raised_roll_back(view: Answering) -> None:
    app, ledger = serve(view)
    app.test_client().get("/")
    assert ledger.events == ["open", "rollback", "close"]


def test_a_friendly_answer_to_an_exception_does_not_commit_half_a_view() -> None:
    app, ledger = serve(lambda: 1 / 0)
    app.register_error_handler(ZeroDivisionError, lambda error: ("never mind", 200))
    assert app.test_client().get("/").status_code == 200
    assert ledger.events == ["open", "rollback", "close"]


def test_an_error_that_propagates_rolls_back() -> None:
    app, ledger = serve(lambda: 1 / 0)
    app.testing = True
    with pytest.raises(ZeroDivisionError):
        app.test_client().get("/")
    assert ledger.events == ["open", "rollback", "close"]


def test_the_commit_comes_after_every_after_request_function() -> None:
    app, ledger = serve(lambda: "fine")

    @app.after_request
    def note(response: Response) -> Response:
        ledger.events.append("after_request")
        return response

    app.after_request_funcs[None].insert(1, app.after_request_funcs[None].pop())
    app.test_client().get("/")
    assert ledger.events == ["open", "after_request", "commit", "close"]


def test_an_after_request_function_that_fails_rolls_back() -> None:
    app, ledger = serve(lambda: "fine")
    app.after_request(lambda response: 1 / 0)
    assert app.test_client().get("/").status_code == 500
    assert ledger.events == ["open", "rollback", "close"]


def test_an_after_request_function_that_makes_it_an_error_rolls_back() -> None:
    app, ledger = serve(lambda: "fine")
    app.after_request(lambda response: Response("no", status=409))
    assert app.test_client().get("/").status_code == 409
    assert ledger.events == ["open", "rollback", "close"]


def test_a_failed_commit_is_a_500_and_never_the_views_answer() -> None:
    error = ValueError("password=s3cret broke")
    app, ledger = serve(lambda: Response("fine", headers={"Set-Cookie": "paid=yes", "Location": "/thanks"}))
    ledger.commit_error = error
    seen: list[BaseException] = []
    with got_request_exception.connected_to(lambda sender, exception: seen.append(exception), app):
        response = app.test_client().get("/", headers={"X-Request-ID": "r"})
    assert (response.status_code, response.content_type) == (500, "application/problem+json")
    assert "Set-Cookie" not in response.headers
    assert response.json is not None
    assert response.json["type"] == "urn:jfast-sync:problem:commit"
    assert "nothing was written" in response.json["detail"]
    assert "ValueError" in response.json["detail"]
    assert "s3cret" not in response.text
    assert response.headers["X-Request-ID"] == "r"
    assert ledger.events == ["open", "commit failed", "close"]
    assert seen == [error]


def test_a_failed_commit_in_prod_does_not_say_why(caplog: pytest.LogCaptureFixture) -> None:
    app, ledger = serve(lambda: "fine", env="prod")
    ledger.commit_error = ValueError("the table is full")
    assert "full" not in app.test_client().get("/").text
    assert "the table is full" in caplog.text


def test_a_streamed_body_begins_after_the_commit_and_finds_the_session_ended() -> None:
    app, jf, ledger = ledger_app()
    refused: list[str] = []

    def chunks() -> Iterator[str]:
        ledger.events.append("first chunk")
        try:
            _ = jf.request_session
        except RuntimeError as error:
            refused.append(str(error))
        yield "a"

    def view() -> Response:
        _ = jf.request_session
        return Response(stream_with_context(chunks()))

    def view_without() -> Response:
        return Response(stream_with_context(chunks()))

    app.add_url_rule("/", view_func=view)
    app.add_url_rule("/without", view_func=view_without)
    assert app.test_client().get("/").text == "a"
    assert ledger.events == ["open", "commit", "close", "first chunk"]
    assert app.test_client().get("/without").text == "a"
    assert ["with jf.session() as session" in text for text in refused] == [True, True]


def test_another_teardown_that_breaks_does_not_keep_the_session_open() -> None:
    app, ledger = serve(lambda: 1 / 0)
    app.testing = True

    @app.teardown_request
    def broken(error: BaseException | None) -> None:
        raise KeyError("teardown")

    with pytest.raises(KeyError):
        app.test_client().get("/")
    assert ledger.events == ["open", "rollback", "close"]


def test_a_request_context_of_a_test_closes_what_it_opened() -> None:
    app, jf, ledger = ledger_app()
    with app.test_request_context("/"):
        assert jf.request_session is get_session()
    assert ledger.events == ["open", "rollback", "close"]


def test_each_request_has_its_own_also_in_one_application_context() -> None:
    app, ledger = serve(lambda: "fine")
    with app.app_context():
        app.test_client().get("/")
        app.test_client().get("/")
    assert ledger.events == ["open", "commit", "close"] * 2


def test_a_nested_request_has_its_own() -> None:
    app, jf, ledger = ledger_app()

    @app.get("/")
    def view() -> str:
        outer = jf.request_session
        with app.test_request_context("/"):
            assert jf.request_session is not outer
        assert jf.request_session is outer
        return ""

    app.test_client().get("/")
    assert ledger.events == ["open", "open", "rollback", "close", "commit", "close"]


def test_a_before_request_function_that_aborts_rolls_back() -> None:
    app, jf, ledger = ledger_app()

    @app.before_request
    def refuse() -> None:
        _ = jf.request_session
        abort(403)

    assert app.test_client().get("/").status_code == 403
    assert ledger.events == ["open", "rollback", "close"]


def test_outside_a_request_the_way_out_is_said() -> None:
    app, jf, _ = ledger_app()
    with app.app_context(), pytest.raises(RuntimeError, match=r"with jf.session\(\) as session"):
        _ = jf.request_session
    with pytest.raises(RuntimeError, match="no Flask app is running"):
        get_session()
    with Flask("other").test_request_context("/"), pytest.raises(RuntimeError, match="has no jfast"):
        get_session()


def test_a_rollback_that_fails_does_not_change_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    app, jf, ledger = ledger_app()

    @app.get("/")
    def view() -> tuple[str, int]:
        _ = jf.request_session
        return "no", 404

    ledger.events = _Breaking()
    assert app.test_client().get("/").status_code == 404
    assert "could not be rolled back" in caplog.text


class _Breaking(list[str]):
    """Fails when the rollback is written down."""

    def append(self, event: str) -> None:
        if event == "rollback":
            raise OSError("the connection is gone")
        super().append(event)
