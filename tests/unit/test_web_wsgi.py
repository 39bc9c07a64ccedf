"""Any WSGI app: request id, tenant, `/ready` and `/queue/stats` around it; and the probe beside a worker."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Iterable, Iterator
from http.client import HTTPConnection, RemoteDisconnected
from typing import TYPE_CHECKING, Any
from wsgiref.util import FileWrapper
from wsgiref.validate import validator

import pytest
from werkzeug.exceptions import Unauthorized
from werkzeug.test import Client, EnvironBuilder

from jfast_sync import context
from jfast_sync.config import load_config
from jfast_sync.core import JFast
from jfast_sync.errors import ConfigError, UnavailableError
from jfast_sync.web.answers import Answer
from jfast_sync.web.probe import Probe
from jfast_sync.web.wsgi import wrap
from tests.unit.web_apps import MEMORY

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def memory_core(**tables: dict[str, object]) -> JFast:
    return JFast(load_config(overrides={**MEMORY, **tables}, environ={}))


def hello(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain"), ("x-request-id", "the app's own")])
    return [f"{context.current_tenant_id()} {context.current_request_id()}".encode()]


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    yield
    assert context.origin() == context.Origin()
    assert context._app.get() is None


class TestWrap:
    def test_the_app_gets_request_id_and_tenant(self) -> None:
        app = wrap(memory_core(), hello, tenant=lambda environ: environ["HTTP_X_API_KEY"])
        response = Client(app).get("/", headers={"X-Request-ID": "r1", "X-Api-Key": "acme", "X-Tenant-ID": "evil"})
        assert response.text == "acme r1"
        assert response.headers.getlist("X-Request-ID") == ["r1"]

    def test_without_a_callback_there_is_no_tenant(self) -> None:
        assert Client(wrap(memory_core(), hello)).get("/", headers={"X-Tenant-ID": "evil"}).text.startswith("None ")

    @pytest.mark.parametrize("prefix", ["", "/internal"])
    def test_it_answers_ready_and_stats(self, prefix: str) -> None:
        client = Client(wrap(memory_core(), hello, prefix=prefix, tenant=lambda environ: 1 / 0))  # type: ignore[return-value, arg-type]
        ready = client.get(prefix + "/ready", headers={"X-Request-ID": "r"})
        assert (ready.status_code, ready.headers["X-Request-ID"]) == (200, "r")
        assert ready.json is not None
        assert ready.json["status"] == "ok"
        stats = client.get(prefix + "/queue/stats")
        assert stats.json is not None
        assert stats.json["depths"]["ready"] == 0

    def test_head_has_the_headers_only_and_other_methods_are_refused(self) -> None:
        client = Client(wrap(memory_core(), hello))
        head = client.head("/ready")
        assert (head.status_code, head.data) == (200, b"")
        assert int(head.headers["Content-Length"]) > 0
        refused = client.post("/ready")
        assert (refused.status_code, refused.headers["Allow"]) == (405, "GET, HEAD")
        assert refused.content_type == "application/problem+json"

    def test_closed_stats_are_404(self) -> None:
        response = Client(wrap(memory_core(queue={"backend": "memory", "expose_stats": False}), hello)).get(
            "/queue/stats"
        )
        assert (response.status_code, response.content_type) == (404, "application/problem+json")

    def test_a_raising_tenant_callback_is_a_500_that_masks_secrets(self, caplog: pytest.LogCaptureFixture) -> None:
        def tenant(environ: WSGIEnvironment) -> str:
            raise ValueError("password=s3cret")

        response = Client(wrap(memory_core(), hello, tenant=tenant)).get("/")
        assert (response.status_code, response.content_type) == (500, "application/problem+json")
        assert "X-Request-ID" in response.headers
        assert "ValueError" in response.text
        assert "s3cret" not in response.text + caplog.text

    def test_an_http_exception_of_the_callback_is_answered_as_it_is(self) -> None:
        def tenant(environ: WSGIEnvironment) -> str:
            raise Unauthorized

        assert Client(wrap(memory_core(), hello, tenant=tenant)).get("/").status_code == 401

    def test_a_tenant_that_cannot_be_one_is_a_500(self) -> None:
        response = Client(wrap(memory_core(), hello, tenant=lambda environ: "")).get("/")
        assert response.status_code == 500
        assert "tenant callback" in response.text

    def test_an_error_of_the_app_passes_and_leaves_nothing_behind(self) -> None:
        def broken(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            Client(wrap(memory_core(), broken)).get("/")

    def test_a_streamed_body_keeps_the_context_and_is_closed(self) -> None:
        closed: list[str | None] = []

        def streaming(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
            start_response("200 OK", [("Content-Type", "text/plain")])
            try:
                yield f"{context.current_tenant_id()};".encode()
                yield f"{context.current_tenant_id()};".encode()
            finally:
                closed.append(context.current_tenant_id())

        response = Client(wrap(memory_core(), streaming, tenant=lambda environ: "acme")).get("/")
        assert response.text == "acme;acme;"
        response.close()
        assert closed == ["acme"]

    def test_a_file_is_left_to_the_server(self) -> None:
        wrapped = FileWrapper(io.BytesIO(b"file"))

        def sending(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            start_response("200 OK", [("Content-Type", "text/plain")])
            return wrapped

        environ = EnvironBuilder("/").get_environ()
        environ["wsgi.file_wrapper"] = FileWrapper
        assert wrap(memory_core(), sending)(environ, lambda *_: lambda _: None) is wrapped

    def test_one_environment_used_twice_is_two_requests(self) -> None:
        environ = EnvironBuilder("/").get_environ()
        app = wrap(memory_core(), hello)
        answers = {b"".join(app(environ, lambda *_: lambda _: None)) for _ in range(2)}
        assert len(answers) == 2

    def test_it_keeps_the_rules_of_wsgi(self) -> None:
        client = Client(validator(wrap(memory_core(), validator(_plain))))
        for path in ("/", "/ready", "/queue/stats"):
            with client.get(path) as response:
                assert response.status_code == 200
                assert response.data

    def test_a_prefix_that_is_no_path_is_refused(self) -> None:
        with pytest.raises(ConfigError, match='write "/internal"'):
            wrap(memory_core(), hello, prefix="internal")


def _plain(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


class TestProbe:
    @pytest.fixture
    def answers(self) -> list[Answer]:
        return [Answer(200, {"status": "ok"})]

    @pytest.fixture
    def probe(self, answers: list[Answer]) -> Iterator[Probe]:
        probe = Probe(lambda: answers[-1], 0, host="127.0.0.1")
        probe.start()
        yield probe
        probe.stop()

    def get(self, port: int, path: str, method: str = "GET") -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read()
            return response.status, json.loads(body) if "json" in response.headers["Content-Type"] else body
        finally:
            connection.close()

    def test_ready_is_what_it_is_told(self, probe: Probe, answers: list[Answer]) -> None:
        assert self.get(probe.port, "/ready?from=kubelet") == (200, {"status": "ok"})
        answers.append(Answer(503, {"status": "unavailable"}))
        assert self.get(probe.port, "/ready") == (503, {"status": "unavailable"})

    def test_live_is_200_as_long_as_it_answers(self, probe: Probe, answers: list[Answer]) -> None:
        answers.append(Answer(503, {"status": "unavailable"}))
        assert self.get(probe.port, "/live") == (200, {"status": "ok"})

    def test_nothing_else_is_served(self, probe: Probe) -> None:
        assert self.get(probe.port, "/queue/stats")[0] == 404
        assert self.get(probe.port, "/ready", "POST")[0] == 501

    def test_its_thread_is_a_named_daemon_and_ends(self, probe: Probe) -> None:
        threads = [thread for thread in threading.enumerate() if thread.name == "jfast-probe"]
        assert [thread.daemon for thread in threads] == [True]
        port = probe.port
        probe.stop()
        probe.stop()
        assert not threads[0].is_alive()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 1)

    def test_a_client_that_says_nothing_delays_nobody(self, probe: Probe) -> None:
        with socket.create_connection(("127.0.0.1", probe.port), 5):
            assert self.get(probe.port, "/ready")[0] == 200

    def test_a_question_that_fails_does_not_end_the_probe(self, probe: Probe, answers: list[Answer]) -> None:
        answers.clear()
        with pytest.raises(RemoteDisconnected):
            self.get(probe.port, "/ready")
        answers.append(Answer(200, {}))
        assert self.get(probe.port, "/ready")[0] == 200

    @pytest.mark.parametrize("port", [None, 70_000])
    def test_a_port_that_cannot_be_had_is_one_sentence(self, probe: Probe, port: int | None) -> None:
        other = Probe(lambda: Answer(200, {}), port or probe.port, host="127.0.0.1")
        with pytest.raises(UnavailableError, match=r"cannot serve /ready on 127\.0\.0\.1:\d+: .*--probe-port"):
            other.start()
