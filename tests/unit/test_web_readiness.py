"""`/ready`: what the checks' answers amount to, and that asking them is bounded in time and threads."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from jfast_sync.errors import UnavailableError
from jfast_sync.health import Check, Health
from jfast_sync.web.readiness import Readiness, evaluate
from tests.waiting import eventually

DSN = "postgresql://app:s3cret@db.internal:5432/app"


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hanging checks wait for; opened at the end, so that their threads end."""
    event = threading.Event()
    yield event
    event.set()


def hanging(gate: threading.Event) -> Callable[[], Health]:
    def ask() -> Health:
        gate.wait(30)
        return Health(detail="at last")

    return ask


def asking_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("jfast-ask-")]


class TestEvaluate:
    def test_every_check_well_is_ok(self) -> None:
        results = {"database": Health(critical=True, detail="sqlite answers", meta={"dialect": "sqlite"})}
        assert evaluate(results, service="shop") == (
            {
                "status": "ok",
                "service": "shop",
                "checks": {
                    "database": {
                        "healthy": True,
                        "status": "ok",
                        "detail": "sqlite answers",
                        "critical": True,
                        "meta": {"dialect": "sqlite"},
                    }
                },
            },
            200,
        )

    def test_without_checks_it_is_ok(self) -> None:
        assert evaluate({}, service="shop") == ({"status": "ok", "service": "shop", "checks": {}}, 200)

    @pytest.mark.parametrize(
        ("status", "critical", "whole", "http"),
        [
            ("unavailable", True, "unavailable", 503),
            ("unavailable", False, "degraded", 200),
            ("degraded", True, "degraded", 200),
            ("degraded", False, "degraded", 200),
        ],
    )
    def test_only_an_unavailable_critical_check_takes_the_service_out(
        self, status: str, critical: bool, whole: str, http: int
    ) -> None:
        results = {"well": Health(critical=True), "other": Health(status=status, critical=critical)}  # type: ignore[arg-type]
        body, code = evaluate(results, service="shop")
        assert (body["status"], code) == (whole, http)
        assert body["checks"]["other"]["healthy"] is False

    def test_passwords_are_masked_everywhere(self) -> None:
        health = Health(status="degraded", detail=f"cannot reach {DSN}", meta={"last": [{"error": f"lost {DSN}"}]})
        text = json.dumps(evaluate({"queue": health}, service="shop")[0])
        assert "s3cret" not in text
        assert "db.internal" in text

    def test_prod_shows_types_of_errors_and_not_their_texts(self) -> None:
        results = {
            "database": Health(status="unavailable", detail=f"OperationalError: no route to {DSN}", critical=True),
            "queue": Health(status="unavailable", detail="could not connect to 10.0.0.7", critical=True),
            "outbox": Health(status="degraded", detail="3 failing: TimeoutError: 10.0.0.9", meta={"n": 3}),
            "relay": Health(status="degraded", detail="failing", meta={"last_error": "gaierror: kafka.internal"}),
            "dead": Health(status="degraded", detail="3 dead letters: see jfast-sync jobs dead"),
        }
        checks = evaluate(results, service="shop", prod=True)[0]["checks"]
        assert checks["database"]["detail"] == "OperationalError"
        assert checks["queue"]["detail"] == "the reason is in the log of this service"
        assert checks["outbox"] == {
            "healthy": False,
            "status": "degraded",
            "detail": "3 failing: TimeoutError",
            "critical": False,
            "meta": {"n": 3},
        }
        assert checks["relay"]["meta"] == {"last_error": "gaierror"}
        assert checks["dead"]["detail"] == "3 dead letters: see jfast-sync jobs dead"

    def test_meta_is_json_whatever_a_check_puts_there(self) -> None:
        meta = {"nan": float("nan"), "error": ValueError("password=s3cret"), 1: {"a"}, "gate": threading.Event()}
        text = json.dumps(evaluate({"queue": Health(meta=meta)}, service="shop")[0], allow_nan=False)  # type: ignore[arg-type]
        assert "s3cret" not in text


class TestAsking:
    def test_a_check_that_raises_is_unavailable_and_keeps_its_criticality(self) -> None:
        def ask() -> Health:
            raise UnavailableError("no route")

        results = Readiness(lambda: {"database": Check(ask, critical=True)}, service="shop").results()
        assert results["database"] == Health(status="unavailable", detail="UnavailableError: no route", critical=True)

    def test_checks_run_side_by_side(self) -> None:
        meeting = threading.Barrier(3)  # passed only when all three are inside at once

        def ask() -> Health:
            meeting.wait(5)
            return Health()

        readiness = Readiness(lambda: {name: Check(ask) for name in "abc"}, service="shop", timeout=10)
        assert [health.status for health in readiness.results().values()] == ["ok"] * 3

    def test_a_silent_check_is_unavailable_and_the_others_are_said(self, gate: threading.Event) -> None:
        checks = {"database": Check(hanging(gate), critical=True), "queue": Check(Health, critical=True)}
        answer = Readiness(lambda: checks, service="shop", timeout=0.2).answer()
        assert answer.status == 503
        assert answer.body["checks"]["database"]["detail"] == "no answer within 0.2 s"
        assert answer.body["checks"]["database"]["critical"] is True
        assert answer.body["checks"]["queue"]["status"] == "ok"

    def test_prod_says_that_a_check_is_silent(self, gate: threading.Event) -> None:
        readiness = Readiness(lambda: {"database": Check(hanging(gate))}, service="shop", prod=True, timeout=0.01)
        assert readiness.answer().body["checks"]["database"]["detail"] == "no answer within 0.01 s"

    def test_polling_a_hanging_check_adds_no_threads(self, gate: threading.Event) -> None:
        checks = {"database": Check(hanging(gate)), "queue": Check(hanging(gate))}
        readiness = Readiness(lambda: checks, service="shop", timeout=0.01)
        for _ in range(10):
            readiness.results()
        assert sorted(asking_threads()) == ["jfast-ask-database", "jfast-ask-queue"]

    def test_many_pollers_at_once_share_one_question(self, gate: threading.Event) -> None:
        readiness = Readiness(lambda: {"database": Check(hanging(gate))}, service="shop", timeout=10)
        answers: list[Health] = []
        pollers = [threading.Thread(target=lambda: answers.append(readiness.results()["database"])) for _ in range(8)]
        for poller in pollers:
            poller.start()
        eventually(asking_threads)
        assert asking_threads() == ["jfast-ask-database"]
        gate.set()
        for poller in pollers:
            poller.join(10)
        assert [health.detail for health in answers] == ["at last"] * 8

    def test_a_check_that_hung_is_asked_again_once_it_has_answered(self, gate: threading.Event) -> None:
        asked: list[None] = []

        def ask() -> Health:
            asked.append(None)
            return hanging(gate)() if len(asked) == 1 else Health(detail="well")

        readiness = Readiness(lambda: {"database": Check(ask)}, service="shop", timeout=0.01)
        assert readiness.results()["database"].status == "unavailable"
        gate.set()
        eventually(lambda: not asking_threads())
        eventually(lambda: readiness.results()["database"].detail == "well")

    def test_a_change_is_logged_once_with_the_text_prod_hides(self, caplog: pytest.LogCaptureFixture) -> None:
        answers = [Health(), Health(status="degraded", detail="lag"), Health(status="degraded", detail="lag"), Health()]
        readiness = Readiness(lambda: {"events": Check(lambda: answers.pop(0))}, service="shop", prod=True)
        with caplog.at_level(logging.INFO, logger="jfast_sync"):
            for _ in range(4):
                readiness.results()
        assert [record.getMessage() for record in caplog.records] == [
            "readiness: events is degraded: lag",
            "readiness: events is ok: no details",
        ]

    def test_uwsgi_with_threads_is_like_any_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(has_threads=1))
        assert Readiness(lambda: {"queue": Check(Health)}, service="shop").results() == {"queue": Health()}

    def test_uwsgi_without_threads_is_asked_in_place_and_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(has_threads=0))
        inside: list[str] = []

        def ask() -> Health:
            inside.append(threading.current_thread().name)
            return Health()

        results = Readiness(lambda: {"queue": Check(ask)}, service="shop").results()
        assert inside == ["MainThread"]
        assert results["threads"].status == "degraded"
        assert "--enable-threads" in results["threads"].detail
