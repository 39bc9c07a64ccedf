"""Log lines: context in each, secrets in none, and no line that a message could forge."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jfast_sync.context import Origin, bind, bind_job
from jfast_sync.job import Job, RunningJob
from jfast_sync.logs import ContextFilter, JsonFormatter, LineFormatter, configure

log = logging.getLogger("shop.orders")


@contextmanager
def bare_root() -> Iterator[logging.Logger]:
    """Take the root logger's handlers away for a moment: pytest puts its own there after every fixture."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        yield root
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = log.makeRecord(log.name, logging.WARNING, __file__, 1, message, args, None, extra=extra or None)
    ContextFilter().filter(made)
    return made


def failed(text: str) -> logging.LogRecord:
    try:
        raise ValueError(text)
    except ValueError:
        return log.makeRecord(log.name, logging.ERROR, __file__, 1, "it failed", (), sys.exc_info())


class TestJson:
    def test_a_line_has_time_level_logger_message_and_what_is_known(self) -> None:
        job = Job(task="mail.send", id="j1", attempts=2)
        with bind(Origin(tenant_id="acme", request_id="r1")), bind_job(RunningJob(job)):
            made = record("sent %s", "it")
        line = json.loads(JsonFormatter().format(made))
        assert line.pop("time").endswith("Z")
        assert line == {
            "level": "WARNING",
            "logger": "shop.orders",
            "message": "sent it",
            "request_id": "r1",
            "tenant_id": "acme",
            "job_id": "j1",
            "task": "mail.send",
            "attempt": 2,
        }

    def test_what_is_not_known_is_left_out(self) -> None:
        assert set(json.loads(JsonFormatter().format(record("a")))) == {"time", "level", "logger", "message"}

    def test_extra_values_come_along_and_cannot_replace_ours(self) -> None:
        line = json.loads(JsonFormatter().format(record("a", order=7, at=object, level="FAKE", dsn="pg://u:s3cret@h")))
        assert line["order"] == 7
        assert line["level"] == "WARNING"
        assert "s3cret" not in line["dsn"]

    @pytest.mark.parametrize("char", ["\n", "\r", "\u2028", "\u2029", "\x85", "\x1b", "\x00", "\ud800"])
    def test_one_record_is_one_line_of_ascii(self, char: str) -> None:
        text = JsonFormatter().format(record(f"a{char}FAKE"))
        assert len(text.splitlines()) == 1
        assert text.isascii()
        assert json.loads(text)["message"] == f"a{char}FAKE"

    def test_a_traceback_is_one_redacted_member(self) -> None:
        line = json.loads(JsonFormatter().format(failed("password=s3cret")))
        assert "Traceback" in line["error"]
        assert "s3cret" not in line["error"]


class TestLines:
    def test_a_line_reads_well(self) -> None:
        with bind(Origin(tenant_id="acme", request_id="r1")):
            text = LineFormatter().format(record("sent %s", "it"))
        assert text.partition(" ")[2] == "WARNING shop.orders: sent it  [request=r1 tenant=acme]"

    @pytest.mark.parametrize(
        ("message", "shown"),
        [
            ("a\nFAKE", "a\\nFAKE"),
            ("a\r\x1b[2K", "a\\r\\x1b[2K"),
            ("a\u2028b", "a\\u2028b"),
            ("C:\\new é", "C:\\new é"),
        ],
    )
    def test_what_could_forge_a_line_is_escaped(self, message: str, shown: str) -> None:
        text = LineFormatter().format(record(message))
        assert text.endswith(shown)
        assert len(text.splitlines()) == 1

    def test_a_line_break_in_an_error_begins_no_line(self) -> None:
        lines = LineFormatter().format(failed("first\nFAKE LINE")).splitlines()
        assert lines[0].endswith("it failed")
        assert all(line.startswith("    ") for line in lines[1:])

    def test_passwords_are_masked(self) -> None:
        text = LineFormatter().format(record("cannot reach %s", "postgresql://u:s3cret@h/db"))
        assert "s3cret" not in text


@pytest.mark.parametrize("formatter", [JsonFormatter(), LineFormatter()])
def test_a_message_whose_arguments_do_not_fit_is_still_logged(formatter: logging.Formatter) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise ValueError

    assert "%d jobs" in formatter.format(record("%d jobs", "many"))
    assert "%s jobs" in formatter.format(record("%s jobs", Unprintable()))


class TestConfigure:
    def test_json_or_lines_or_plain(self) -> None:
        stream = io.StringIO()
        with bare_root():
            assert configure("INFO", json_logs=True, stream=stream)
            log.info("one")
            assert configure("INFO", json_logs=False, stream=stream)
            log.info("two")
            assert configure("INFO", json_logs=True, enabled=False, stream=stream)
            log.info("three")
        lines = stream.getvalue().splitlines()
        assert json.loads(lines[0])["message"] == "one"
        assert lines[1].endswith("INFO    shop.orders: two")
        assert lines[2].endswith("INFO shop.orders: three")
        assert len(lines) == 3

    def test_the_level_counts(self) -> None:
        stream = io.StringIO()
        with bare_root():
            configure("ERROR", json_logs=False, stream=stream)
            log.warning("unheard")
        assert stream.getvalue() == ""

    def test_an_application_that_logs_by_itself_is_left_alone(self) -> None:
        own = logging.StreamHandler(io.StringIO())
        with bare_root() as root:
            root.addHandler(own)
            level = root.level
            assert configure("DEBUG", json_logs=True) is False
            assert (root.handlers, root.level) == ([own], level)
