from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest

from jfast_sync_cli.options import DURATION, INSTANT, SINCE, parse_duration
from jfast_sync_cli.payloads import read_argument, read_object
from jfast_sync_cli.show import age, indented, plain, print_table, seconds_text

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("1.5", 1.5),
        ("250ms", 0.25),
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("1 h 30 m", 5400),
        ("2H", 7200),
        ("2d", 172_800),
        ("1w", 604_800),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "-5", "5 fortnights", "1h30", "1e9", "nan", "9" * 300, "9" * 20 + "d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        DURATION.convert(text, None, None)


def test_an_instant_keeps_its_moment_and_becomes_utc() -> None:
    assert INSTANT.convert("2026-03-01T13:00:00+01:00", None, None) == NOON
    assert INSTANT.convert("2026-03-01T12:00:00Z", None, None).utcoffset() == timedelta(0)


@pytest.mark.parametrize("text", ["2026-03-01T12:00:00", "yesterday", "", "0001-01-01T00:00:00+14:00"])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        INSTANT.convert(text, None, None)


def test_since_takes_a_duration_ago_or_an_instant() -> None:
    before = datetime.now(UTC)
    moment = SINCE.convert("2h", None, None) + timedelta(hours=2)
    assert before <= moment <= datetime.now(UTC)
    assert SINCE.convert("2026-03-01T12:00:00Z", None, None) == NOON


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0001, "1 ms"),
        (0.02, "20 ms"),
        (0.4, "0.4 s"),
        (9.96, "10 s"),
        (59, "59 s"),
        (61, "1 m"),
        (3599, "59 m"),
        (3700, "1 h"),
        (90_000, "25 h"),
        (200_000, "2 d"),
    ],
)
def test_lengths_of_time_for_people(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_ages_look_both_ways() -> None:
    assert age(NOON - timedelta(minutes=3), NOON) == "3 m ago"
    assert age(NOON + timedelta(seconds=20), NOON) == "in 20 s"
    assert age(None, NOON) == ""


def test_stored_texts_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in plain("\x1b[2Jgone")
    assert indented("a\nb\r\x07") == "    a\n    b\ufffd\ufffd"


def test_columns_are_aligned_and_numbers_stand_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("state", "jobs"), [("ready", 12), ("dead", 3)])
    assert capsys.readouterr().out == "state  jobs\nready    12\ndead      3\n"


def test_payloads_that_are_json_objects(tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_bytes(b'\xef\xbb\xbf{"id": 7, "name": "\xc3\xa9"}')  # a byte order mark, as some editors write
    assert read_argument(None) == {}
    assert read_argument('{"id": 7}') == {"id": 7}
    assert read_argument(f"@{file}") == {"id": 7, "name": "é"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"a":}', "is not JSON: Expecting value at column 6"),
        (b"", "is not JSON: Expecting value at column 1"),
        (b"name=x", """near 'name=x'; write an object such as '{"id": 7}'"""),
        (b'{\n"a": 1,\n}', "at line"),
        (b"[1]", 'must be a JSON object such as {"id": 7}, not a list'),
        (b"7", "not a number"),
        (b'"x"', "not a text"),
        (b"null", "not null"),
        (b'{"a": NaN}', "NaN is not a JSON value"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON value"),
        (b'{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        (b"\xff", "is not UTF-8 text (byte 1)"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "holds a number of too many digits; write it as a text"),
    ],
)
def test_payloads_that_are_not(body: bytes, said: str) -> None:
    with pytest.raises(click.ClickException, match=r"^the payload ") as caught:
        read_object(body, "the payload")
    assert said in caught.value.message
    assert len(caught.value.message) < 300


def test_a_payload_file_that_is_not_there() -> None:
    with pytest.raises(click.ClickException, match="/nowhere/x cannot be read: No such file"):
        read_argument("@/nowhere/x")
