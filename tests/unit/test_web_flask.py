"""The Flask extension: factory, endpoints, request context, problems."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from flask import Flask, Response, abort, copy_current_request_context, current_app, request, stream_with_context
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from jfast_sync import context, current_request_id, current_tenant_id
from jfast_sync.config import load_config
from jfast_sync.errors import ConfigError, JFastError, PayloadError, UnavailableError
from jfast_sync.flask import JFast
from jfast_sync.job import Job
from tests.unit.web_apps import MEMORY, memory_app

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    assert context.origin() == context.Origin()
    yield
    assert context.origin() == context.Origin()
    assert context._app.get() is None


class TestFactory:
    def test_two_apps_of_one_extension_have_jobs_of_their_own(self) -> None:
        jf = JFast(overrides=MEMORY)
        first, second = Flask("first"), Flask("second")
        jf.init_app(first)
        jf.init_app(second, overrides={"app": {"name": "second"}})
        with first.app_context():
            jf.queue.enqueue(Job(task="a"))
            assert jf.queue.stats().ready == 1
            assert context.get_context() is not None
        with second.app_context():
            assert jf.queue.stats().ready == 0
            assert jf.config.app.name == "second"
        assert first.extensions["jfast"] is not second.extensions["jfast"]

    def test_a_view_gets_the_context_of_its_own_app(self) -> None:
        jf = JFast(overrides=MEMORY)
        apps = [Flask("first"), Flask("second")]
        seen: dict[str, bool] = {}
        for app in apps:
            jf.init_app(app)

            @app.get("/")
            def view() -> str:
                seen[current_app.name] = context.get_context() is current_app.extensions["jfast"]
                return ""

        for app in apps:
            app.test_client().get("/")
        assert seen == {"first": True, "second": True}

    def test_outside_a_context_the_only_app_is_meant(self) -> None:
        app, jf = memory_app()
        assert jf.core is app.extensions["jfast"]
        assert jf.stopping is False

    def test_without_an_app_and_with_two_the_way_out_is_said(self) -> None:
        jf = JFast(overrides=MEMORY)
        with pytest.raises(RuntimeError, match=r"call jf\.init_app"):
            _ = jf.queue
        assert not hasattr(jf, "stopping")
        apps = [Flask("first"), Flask("second")]
        for app in apps:
            jf.init_app(app)
        with pytest.raises(RuntimeError, match=r"app\.app_context"):
            _ = jf.queue
        with Flask("third").app_context(), pytest.raises(RuntimeError, match="'third' has no jfast"):
            _ = jf.queue

    def test_one_app_is_initialised_once(self) -> None:
        app, jf = memory_app()
        with pytest.raises(ConfigError, match="once per app"):
            jf.init_app(app)

    def test_what_is_provided_and_observed_reaches_apps_before_and_after(self) -> None:
        jf = JFast(overrides=MEMORY)
        before, after = Flask("before"), Flask("after")
        jf.init_app(before)
        jf.provide("mailer", "a mailer")
        seen: list[str] = []
        for moment in (jf.on_start, jf.on_success, jf.on_failure, jf.on_dead):
            assert moment(lambda event: seen.append(event.job.id)) is not None
        jf.init_app(after)
        for app in (before, after):
            with app.app_context():
                assert jf.require("mailer") == "a mailer"
            for told in ("start", "success", "failure", "dead"):
                app.extensions["jfast"].observers.tell(told, type("E", (), {"job": Job(task="a", id="j")}))
        assert seen == ["j"] * 8

    def test_the_flask_configuration_wins_over_the_arguments(self) -> None:
        app = Flask("shop")
        app.config["JFAST"] = {"queue": {"max_attempts": 9}}
        JFast(app, overrides={**MEMORY, "queue": {"backend": "memory", "max_attempts": 4}})
        assert app.extensions["jfast"].config.queue.max_attempts == 9

    def test_a_file_and_a_loaded_configuration_are_taken(self, tmp_path: Path) -> None:
        (tmp_path / "jfast.toml").write_text('[app]\nname = "billing"\n')
        for config in (tmp_path, str(tmp_path / "jfast.toml"), load_config(tmp_path)):
            app = Flask("shop")
            JFast(app, config=config)
            assert app.extensions["jfast"].config.app.name == "billing"

    def test_values_beside_a_loaded_configuration_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="load_config"):
            JFast(Flask("shop"), config=load_config(overrides=MEMORY), overrides=MEMORY)

    def test_initialising_starts_no_thread(self) -> None:
        before = threading.enumerate()
        memory_app()
        memory_app(env="prod")
        assert threading.enumerate() == before


class TestEndpoints:
    def test_ready(self) -> None:
        app, _ = memory_app()
        response = app.test_client().get("/ready")
        assert response.status_code == 200
        assert response.content_type == "application/json"
        assert response.headers["Cache-Control"] == "no-store"
        assert response.json is not None
        assert response.json["status"] == "ok"
        assert response.json["service"] == "jfast-service"
        assert response.json["checks"]["queue"]["meta"]["backend"] == "memory"

    def test_an_unavailable_critical_check_is_503(self, monkeypatch: pytest.MonkeyPatch) -> None:
        app, jf = memory_app()

        def stats() -> object:
            raise UnavailableError("the broker is away")

        monkeypatch.setattr(jf.core.queue.backend, "stats", stats)
        response = app.test_client().get("/ready")
        assert response.status_code == 503
        assert response.json is not None
        assert response.json["checks"]["queue"]["critical"] is True

    def test_stats(self) -> None:
        app, jf = memory_app()
        jf.tasks.task("mail.send")(lambda payload: None)
        jf.queue.enqueue(Job(task="mail.send"))
        response = app.test_client().get("/queue/stats")
        assert response.status_code == 200
        assert response.json is not None
        assert response.json["backend"] == "memory"
        assert "mail.send" in response.json["tasks"]
        assert response.json["depths"] == {"ready": 1, "delayed": 0, "running": 0, "dead": 0}

    def test_stats_of_a_queue_that_cannot_be_reached_are_a_problem(self, monkeypatch: pytest.MonkeyPatch) -> None:
        app, jf = memory_app()

        def stats() -> object:
            raise UnavailableError("the broker at amqp://u:s3cret@h is away")

        monkeypatch.setattr(jf.core.queue.backend, "stats", stats)
        response = app.test_client().get("/queue/stats")
        assert (response.status_code, response.content_type) == (503, "application/problem+json")
        assert "s3cret" not in response.text

    @pytest.mark.parametrize(
        ("env", "expose", "status"),
        [
            ("local", None, 200),
            ("staging", None, 200),
            ("local", False, 404),
            ("prod", None, 404),
            ("prod", False, 404),
        ],
    )
    def test_stats_are_open_except_in_prod_unless_said(self, env: str, expose: bool | None, status: int) -> None:
        app, _ = memory_app(
            env=env, overrides={"queue": {"expose_stats": expose, **({} if env == "prod" else MEMORY["queue"])}}
        )
        response = app.test_client().get("/queue/stats")
        assert response.status_code == status
        if status == 404:
            assert response.content_type == "application/problem+json"
            assert response.json is not None
            assert response.json["instance"] == "/queue/stats"
            assert response.json["request_id"] == response.headers["X-Request-ID"]

    def test_both_can_be_mounted_under_a_prefix(self) -> None:
        app, _ = memory_app(url_prefix="/internal/")
        client = app.test_client()
        assert client.get("/internal/ready").status_code == 200
        assert client.get("/internal/queue/stats").status_code == 200
        assert client.get("/ready").status_code == 404

    def test_a_probe_does_not_ask_for_a_tenant(self) -> None:
        app, _ = memory_app(tenant=lambda request: abort(401))
        assert app.test_client().get("/ready").status_code == 200
        assert app.test_client().get("/").status_code == 401


class TestRequestContext:
    def test_the_request_id_is_bound_and_answered(self) -> None:
        app, _ = memory_app()

        @app.get("/")
        def view() -> str:
            return f"{context.current_request_id()} {Job(task='a').request_id}"

        response = app.test_client().get("/", headers={"X-Request-ID": "req-7"})
        assert response.text == "req-7 req-7"
        assert response.headers.getlist("X-Request-ID") == ["req-7"]

    def test_a_forged_one_is_replaced(self) -> None:
        app, _ = memory_app()
        response = app.test_client().get("/none", headers={"X-Request-ID": "a b"})
        assert re.fullmatch("[0-9a-f]{32}", response.headers["X-Request-ID"])

    def test_the_trace_comes_along(self) -> None:
        app, _ = memory_app()
        seen: list[object] = []

        @app.get("/")
        def view() -> str:
            seen.append(Job(task="a").trace)
            return ""

        app.test_client().get("/", headers={"traceparent": PARENT, "tracestate": "a=1"})
        assert seen == [{"traceparent": PARENT, "tracestate": "a=1"}]

    @pytest.mark.parametrize("path", ["/none", "/boom", "/abort", "/own", "/ready", "/post-only"])
    def test_every_answer_carries_the_id(self, path: str) -> None:
        app, _ = memory_app()

        @app.get("/boom")
        def boom() -> str:
            raise ZeroDivisionError

        @app.get("/abort")
        def aborting() -> str:
            abort(418)

        @app.get("/own")
        def own() -> Response:
            return Response(headers={"X-Request-Id": "the view's own"})

        @app.post("/post-only")
        def post_only() -> str:
            return ""

        response = app.test_client().get(path, headers={"X-Request-ID": "req-8"})
        assert response.headers.getlist("X-Request-ID") == ["req-8"]

    def test_the_answer_to_a_failed_finish_carries_the_id(self) -> None:
        app, _ = memory_app()

        @app.after_request
        def broken(response: Response) -> Response:
            raise ZeroDivisionError

        response = app.test_client().get("/ready", headers={"X-Request-ID": "req-9"})
        assert (response.status_code, response.headers["X-Request-ID"]) == (500, "req-9")

    def test_the_tenant_is_what_the_callback_says_and_never_the_header(self) -> None:
        app, _ = memory_app(tenant=lambda request: {"key-1": "acme"}.get(request.headers.get("X-Api-Key", "")))

        @app.get("/")
        def view() -> str:
            return str(context.current_tenant_id())

        client = app.test_client()
        assert client.get("/", headers={"X-Api-Key": "key-1", "X-Tenant-ID": "evil"}).text == "acme"
        assert client.get("/", headers={"X-Tenant-ID": "evil"}).text == "None"

    def test_the_tenant_is_known_to_before_request_functions_registered_earlier(self) -> None:
        app = Flask("shop")
        seen: list[str | None] = []
        app.before_request(lambda: seen.append(context.current_tenant_id()))
        JFast(app, overrides=MEMORY, tenant=lambda request: "acme")
        app.test_client().get("/")
        assert seen == ["acme"]

    def test_a_tenant_can_be_bound_later_by_the_app(self) -> None:
        app, jf = memory_app(tenant=lambda request: None)
        app.before_request(lambda: jf.set_tenant("acme"))

        @app.get("/")
        def view() -> str:
            return f"{context.current_tenant_id()} {context.current_request_id()}"

        assert app.test_client().get("/", headers={"X-Request-ID": "r"}).text == "acme r"

    def test_a_raising_callback_fails_the_request(self) -> None:
        app, _ = memory_app(tenant=lambda request: 1 / 0)

        @app.get("/")
        def view() -> str:
            pytest.fail("the view ran without its tenant")

        assert app.test_client().get("/").status_code == 500

    def test_a_callback_that_answers_nonsense_fails_the_request(self) -> None:
        app, _ = memory_app(tenant=lambda request: "a\nb")
        response = app.test_client().get("/")
        assert (response.status_code, response.content_type) == (500, "application/problem+json")
        assert "tenant callback" in response.text

    def test_nothing_leaks_when_another_before_request_or_teardown_breaks(self) -> None:
        app, _ = memory_app(tenant=lambda request: "acme")

        @app.before_request
        def refuse() -> None:
            abort(403)

        @app.teardown_request
        def broken(error: BaseException | None) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            app.test_client().get("/")
        assert context.origin() == context.Origin()

    def test_nothing_leaks_from_one_request_to_the_next_on_a_thread(self) -> None:
        app, _ = memory_app(tenant=lambda request: request.args.get("t"))

        @app.get("/")
        def view() -> str:
            return f"{context.current_tenant_id()} {context.origin().trace}"

        client = app.test_client()
        assert client.get("/?t=acme", headers={"traceparent": PARENT}).text.startswith("acme {")
        assert client.get("/").text == "None None"

    def test_an_error_that_propagates_leaves_nothing_behind(self) -> None:
        app, _ = memory_app(tenant=lambda request: "acme")
        app.testing = True

        @app.get("/")
        def view() -> str:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            app.test_client().get("/")
        assert context.origin() == context.Origin()

    def test_request_contexts_nest(self) -> None:
        app, _ = memory_app(tenant=lambda request: request.args.get("t"))

        def who() -> tuple[str | None, str | None]:
            return context.current_tenant_id(), context.current_request_id()

        seen = []

        @app.get("/")
        def view() -> str:
            with app.test_request_context("/?t=inner", headers={"X-Request-ID": "r2"}):
                app.preprocess_request()
                seen.append(who())
            seen.append(who())
            return ""

        app.test_client().get("/?t=outer", headers={"X-Request-ID": "r1"})
        assert seen == [("inner", "r2"), ("outer", "r1")]

    @pytest.mark.parametrize("keep", [stream_with_context, lambda chunks: chunks])
    def test_a_streamed_body_keeps_the_context_and_leaves_nothing_behind(self, keep: object) -> None:
        app, _ = memory_app(tenant=lambda request: "acme")

        def chunks() -> Iterator[str]:
            for number in range(2):
                yield f"{number} {context.current_tenant_id()} {context.current_request_id()};"

        app.get("/")(lambda: Response(keep(chunks())))  # type: ignore[operator]
        response = app.test_client().get("/", headers={"X-Request-ID": "r"}, buffered=False)
        assert context.origin() == context.Origin()
        assert response.text == "0 acme r;1 acme r;"
        response.close()

    def test_an_abandoned_stream_leaves_nothing_behind(self) -> None:
        app, _ = memory_app(tenant=lambda request: "acme")
        ended: list[str | None] = []

        def chunks() -> Iterator[str]:
            try:
                yield "a"
                yield "b"
            finally:
                ended.append(context.current_tenant_id())

        app.get("/")(lambda: Response(chunks()))
        response = app.test_client().get("/")
        assert next(iter(response.response)) == b"a"
        response.close()
        assert ended == ["acme"]

    def test_an_app_mounted_in_an_app_shares_the_request_id(self) -> None:
        outer, _ = memory_app()
        inner, _ = memory_app()
        inner.get("/")(lambda: f"{context.current_request_id()} {context.get_context() is inner.extensions['jfast']}")
        outer.wsgi_app = DispatcherMiddleware(outer.wsgi_app, {})  # type: ignore[method-assign]
        outer.get("/in")(lambda: Response.from_app(inner, {**request.environ, "PATH_INFO": "/"}))
        response = Client(outer).get("/in", headers={"X-Request-ID": "r"})
        assert response.text == "r True"
        assert response.headers.getlist("X-Request-ID") == ["r"]

    @pytest.mark.parametrize("streamed", [False, True])
    def test_an_app_called_by_a_view_has_a_tenant_of_its_own(self, streamed: bool) -> None:
        outer, jf = memory_app(tenant=lambda request: "a")
        inner, _ = memory_app(tenant=lambda request: "b")

        def here() -> str:
            known = context.current_app()
            return f"{current_tenant_id()} {current_request_id()} {known is inner.extensions['jfast']}"

        @inner.get("/")
        def within() -> Response:
            if streamed:
                return Response(stream_with_context(here() for _ in range(1)))
            return Response(here())

        @outer.get("/")
        def view() -> list[str]:
            answer = Response.from_app(inner.wsgi_app, request.environ)
            jf.set_tenant(f"{current_tenant_id()}2")
            return [answer.get_data(as_text=True), here()]

        answered = outer.test_client().get("/", headers={"X-Request-ID": "r"}).json
        assert answered == ["b r True", "a2 r False"]
        assert context.origin() == context.Origin()

    def test_a_thread_that_the_request_is_copied_to_knows_whose_it_is(self) -> None:
        app, jf = memory_app(tenant=lambda request: "acme")
        memory_app()  # the latest built, which is not the request's
        go_on = threading.Event()

        def whose() -> tuple[object, ...]:
            return current_tenant_id(), current_request_id(), Job(task="x").tenant_id, context.current_app() is jf.core

        def later() -> tuple[object, ...]:
            assert go_on.wait(10)
            with pytest.raises(RuntimeError):
                jf.set_tenant("other")
            return whose()

        with ThreadPoolExecutor(1) as pool:

            @app.get("/")
            def view() -> str:
                assert pool.submit(copy_current_request_context(whose)).result() == whose()
                futures.append(pool.submit(copy_current_request_context(later)))
                return ""

            futures: list[Future[tuple[object, ...]]] = []
            app.test_client().get("/", headers={"X-Request-ID": "r"})
            go_on.set()
            assert futures[0].result() == ("acme", "r", "acme", True), "the request is over, and still its own"
            assert pool.submit(context.origin).result() == context.Origin()


class TestProblems:
    def test_an_error_of_ours_is_a_problem(self) -> None:
        app, jf = memory_app()

        @app.post("/orders")
        def view() -> str:
            jf.queue.enqueue(Job(task="a", payload={"when": object()}))
            return ""

        response = app.test_client().post("/orders")
        assert (response.status_code, response.content_type) == (422, "application/problem+json")
        assert response.json is not None
        assert response.json["instance"] == "/orders"
        assert "when" in response.json["detail"]

    def test_prod_does_not_say_why(self, caplog: pytest.LogCaptureFixture) -> None:
        app, _ = memory_app(env="prod")

        @app.get("/")
        def view() -> str:
            raise JFastError("the secret reason")

        response = app.test_client().get("/")
        assert response.status_code == 500
        assert "secret" not in response.text
        assert "the secret reason" in caplog.text

    def test_errors_of_others_are_left_to_the_app(self) -> None:
        app, _ = memory_app()
        app.register_error_handler(ValueError, lambda error: ("the app's own", 409))

        @app.get("/")
        def view() -> str:
            raise ValueError("not ours")

        assert app.test_client().get("/").text == "the app's own"

    @pytest.mark.parametrize("earlier", [True, False])
    def test_the_apps_own_handler_for_ours_wins(self, earlier: bool) -> None:
        app = Flask("shop")
        jf = JFast(overrides=MEMORY)
        if not earlier:
            jf.init_app(app)
        app.register_error_handler(JFastError, lambda error: ("the app's own", 409))
        if earlier:
            jf.init_app(app)

        @app.get("/")
        def view() -> str:
            raise PayloadError("ours")

        assert app.test_client().get("/").text == "the app's own"
