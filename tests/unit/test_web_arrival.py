"""What a request brings along, and how much of it is believed; problems; answers."""

from __future__ import annotations

import json
import re

import pytest

from jfast_sync.context import Origin
from jfast_sync.errors import (
    ConfigError,
    JFastError,
    PayloadError,
    UnavailableError,
    UndeliverableEvent,
    UnknownTaskError,
)
from jfast_sync.job import Job
from jfast_sync.web.answers import Answer
from jfast_sync.web.arrival import arrival, checked_tenant
from jfast_sync.web.problems import problem, problem_of
from jfast_sync.web.wsgi import checked_prefix

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class TestRequestId:
    def test_a_valid_one_is_kept(self) -> None:
        assert arrival({"HTTP_X_REQUEST_ID": "req-1.a:b"}).request_id == "req-1.a:b"

    @pytest.mark.parametrize("sent", [None, "", "a b", "a\nFAKE LOG LINE", "x" * 129, "é", "a,b", "-x", "\x1b[31m"])
    def test_any_other_is_replaced_by_a_fresh_one(self, sent: str | None) -> None:
        made = [arrival({} if sent is None else {"HTTP_X_REQUEST_ID": sent}).request_id for _ in range(2)]
        assert all(re.fullmatch("[0-9a-f]{32}", request_id or "") for request_id in made)
        assert made[0] != made[1]

    def test_a_tenant_header_is_not_believed(self) -> None:
        assert arrival({"HTTP_X_TENANT_ID": "acme", "HTTP_X_TENANT": "acme"}).tenant_id is None


class TestTrace:
    @pytest.mark.parametrize(
        "parent", [PARENT, PARENT[:-2] + "00", "cc" + PARENT[2:], "cc" + PARENT[2:] + "-what-may-come"]
    )
    def test_a_valid_traceparent_is_taken(self, parent: str) -> None:
        assert arrival({"HTTP_TRACEPARENT": parent}).trace == {"traceparent": parent}

    @pytest.mark.parametrize(
        "parent",
        [
            "",
            "ff" + PARENT[2:],
            PARENT.upper(),
            PARENT + "-more",
            PARENT + "\n",
            PARENT[:-1],
            "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01",
            "cc" + PARENT[2:] + "-" + "x" * 300,
        ],
    )
    def test_an_invalid_one_is_left_out_and_tracestate_with_it(self, parent: str) -> None:
        assert arrival({"HTTP_TRACEPARENT": parent, "HTTP_TRACESTATE": "a=1"}).trace is None

    def test_tracestate_comes_along_when_it_is_printable_and_short(self) -> None:
        trace = arrival({"HTTP_TRACEPARENT": PARENT, "HTTP_TRACESTATE": "a=1,b=2"}).trace
        assert trace == {"traceparent": PARENT, "tracestate": "a=1,b=2"}
        for state in ("a=\x00", "a=" + "x" * 600):
            assert arrival({"HTTP_TRACEPARENT": PARENT, "HTTP_TRACESTATE": state}).trace == {"traceparent": PARENT}

    def test_without_headers_there_is_only_a_request_id(self) -> None:
        found = arrival({})
        assert found == Origin(request_id=found.request_id)


@pytest.mark.parametrize("tenant", [None, "acme", "a" * 128, "org:1@x"])
def test_a_tenant_that_can_be_one_is_kept(tenant: str | None) -> None:
    assert checked_tenant(tenant) == tenant


@pytest.mark.parametrize("tenant", ["", "a b", "a\nb", "x" * 129, "Müller", 7, True, b"acme", ["acme"]])
def test_any_other_answer_of_the_callback_is_refused(tenant: object) -> None:
    with pytest.raises(ConfigError, match="the tenant callback answered"):
        checked_tenant(tenant)


def test_a_job_that_the_applications_own_code_makes_may_be_for_any_printable_tenant() -> None:
    assert Job(task="a", tenant_id="Müller GmbH").tenant_id == "Müller GmbH"


@pytest.mark.parametrize(("prefix", "used"), [("", ""), ("/", ""), ("/internal", "/internal"), ("/a/b/", "/a/b")])
def test_a_prefix_loses_its_last_slash(prefix: str, used: str) -> None:
    assert checked_prefix(prefix) == used


def test_a_prefix_without_a_slash_names_the_right_one() -> None:
    with pytest.raises(ConfigError, match='write "/internal"'):
        checked_prefix("internal")


class TestProblems:
    def test_a_problem_is_a_problem_document(self) -> None:
        answer = problem(404, "Nothing here.", instance="/queue/stats", request_id="r1")
        assert answer.content_type == "application/problem+json"
        assert answer.body == {
            "type": "about:blank",
            "title": "Not Found",
            "status": 404,
            "detail": "Nothing here.",
            "instance": "/queue/stats",
            "request_id": "r1",
        }

    @pytest.mark.parametrize(
        ("error", "status", "detail", "detail_in_prod"),
        [
            (PayloadError("at $.when: naive"), 422, "at $.when: naive", "at $.when: naive"),
            (UndeliverableEvent("add @subscribe"), 500, "add @subscribe", "add @subscribe"),
            (UnavailableError("no route to pg:5432"), 503, "no route to pg:5432", "Try again later."),
            (
                UnknownTaskError("no task 'a'; known: b"),
                500,
                "no task 'a'; known: b",
                "The reason is in the log of this service.",
            ),
        ],
    )
    def test_each_error_has_its_status(self, error: JFastError, status: int, detail: str, detail_in_prod: str) -> None:
        for prod, expected in ((False, detail), (True, detail_in_prod)):
            answer = problem_of(error, prod=prod, instance="/orders")
            assert (answer.status, answer.body["status"], answer.body["detail"]) == (status, status, expected)
            assert answer.body["instance"] == "/orders"
            assert "request_id" not in answer.body

    def test_a_password_in_the_text_is_masked(self) -> None:
        error = UnavailableError("cannot reach postgresql://u:s3cret@h/db")
        assert "s3cret" not in str(problem_of(error, prod=False, instance="/").body)


def test_an_answer_is_json_that_must_not_be_cached() -> None:
    answer = Answer(503, {"status": "unavailable", "detail": "é\ud800"})
    assert json.loads(answer.encoded()) == {"status": "unavailable", "detail": "é?"}
    assert answer.status_line == "503 Service Unavailable"
    assert ("Cache-Control", "no-store") in answer.headers
