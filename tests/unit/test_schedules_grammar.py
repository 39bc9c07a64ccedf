"""What is let in, and what is said of the rest."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jfast_sync.errors import DeclarationError, ScheduleError
from jfast_sync.schedules import Cron

START = datetime(2025, 1, 1, tzinfo=UTC)


def refusal(expression):
    with pytest.raises(ScheduleError) as caught:
        Cron(expression)
    return str(caught.value)


@pytest.mark.parametrize(
    ("expression", "instead"),
    [
        ("0 0 * * * *", "six fields"),
        ("0 0 * * * 0 2025", "leave the seconds and the year out"),
        ("0 0 * *", "write * for each that may be anything"),
        ("", "empty"),
        (" \t ", "empty"),
        ("0 0 * * *\n", "one line"),
        ("0 0 * * *\n0", "one line"),
        ("0\u00a00 * * *", "plain digits"),
        ("0 0 ? * 1", "write *"),
        ("0 0 L * *", "28-31"),
        ("0 0 l-3 * *", "28-31"),
        ("0 0 LW * *", "28-31"),
        ("0 0 * * 5L", "write 5, and"),
        ("0 0 * * friL", "write fri, and"),
        ("0 0 * * 7/2", "write 0-6/2"),
        ("0 0 * * 7-sat", "write 0-6"),
        ("48/15 * * * *", "write 48"),
        ("0 0 1 dec/4 *", "write 12"),
        ("0~30 * * * *", "jitter="),
        ("CRON_TZ=Europe/Madrid 0 3 * * *", "write timezone='Europe/Madrid'"),
        ("TZ=UTC 0 3 * * *", "write timezone='UTC'"),
        ("0 0 15W * *", "nearest weekday"),
        ("0 0 * * 5#3", "n-th weekday"),
        ("0 0 * * fri#3", "n-th weekday"),
        ("H H * * *", "jitter="),
        ("H(0-29)/10 * * * *", "jitter="),
        ("R * * * *", "jitter="),
        ("5/15 * * * *", "write 5-59/15"),
        ("0 0 1 mar/3 *", "write 3-12/3"),
        ("0 0 * * 5/2", "write 5"),
        ("*/60 * * * *", "write 0"),
        ("0 */24 * * *", "write 0"),
        ("0 0 */31 * *", "write 1"),
        ("0 0 1 */12 *", "write 1"),
        ("0 0 * * */7", "write 0"),
        ("10-20/15 * * * *", "write 10"),
        ("*/0 * * * *", "write *"),
        ("1-5/0 * * * *", "write 1-5"),
        ("0 0 * * fri-mon", "write 5-6,0-1"),
        ("0 0 * * sat-sun", "write 6-7"),
        ("0 0 * * fri-sun", "write 5-7"),
        ("0 22-4 * * *", "write 22-23,0-4"),
        ("0 22-4/2 * * *", "write 22,0,2,4"),
        ("0 0 1 nov-feb *", "write 11-12,1-2"),
        ("0 0 1 11-2/3 *", "write 11,2"),
        ("60 * * * *", "write 0 to 59"),
        ("* 24 * * *", "write 0 to 23"),
        ("* * 0 * *", "write 1 to 31"),
        ("* * 32 * *", "write 1 to 31"),
        ("* * * 0 *", "write 1 to 12"),
        ("* * * * 8", "write 0 to 7"),
        ("99999 * * * *", "the number is out of range; write 0 to 59"),
        ("*/99999 * * * *", "the step is out of range; write 1 to 59"),
        ("-5 * * * *", "not negative; write 0 to 59"),
        ("* * 1--5 * *", "not negative; write 1 to 31"),
        ("*/-5 * * * *", "not negative"),
        ("* 1.5 * * *", "whole; write 0 to 23"),
        ("1,,2 * * * *", "comma"),
        (",1 * * * *", "comma"),
        ("1, * * * *", "comma"),
        ("*,* *, * * *", "comma"),
        ("* * * january *", "three letters"),
        ("* * * foo *", "a name like jan"),
        ("* * * mon *", "a name like jan"),
        ("* * * * jan", "a name like sun"),
        ("jan * * * *", "not a number"),
        ("1-2-3 * * * *", "not understood"),
        ("** * * * *", "not understood"),
        ("*-5 * * * *", "not understood"),
        ("1/ * * * *", "not understood"),
        ("*/+5 * * * *", "not understood"),
        ("@every5m", "@hourly @daily"),
        ("@daily @daily", "@hourly @daily"),
        ("@reboot", "where the app is built"),
        ("@midnight", "write @daily"),
        ("@ANNUALLY", "write @yearly"),
        ("0 0 31 2 *", "feb has no day 31; write a day up to 29"),
        ("0 0 30,31 2 *", "never happen"),
        ("0 0 31 4,6,9,11 *", "write a day up to 30"),
        ("0 0 31 2 */2", "never happen"),
    ],
)
def test_a_refusal_says_what_to_write(expression, instead):
    text = refusal(expression)
    assert instead in text
    assert text.startswith(f"cron expression {expression[:80]!r}: ")


NUMBERS = st.sampled_from([*map(str, range(62)), "jan", "dec", "sun", "fri", "sat"])
ITEMS = st.one_of(
    st.builds("{}/{}".format, NUMBERS, NUMBERS),
    st.builds("{}-{}".format, NUMBERS, NUMBERS),
    st.builds("{}-{}/{}".format, NUMBERS, NUMBERS, NUMBERS),
    st.builds("*/{}".format, NUMBERS),
    st.builds("{}L".format, NUMBERS),
)


@settings(max_examples=400, deadline=None)
@given(item=ITEMS, at=st.integers(0, 4))
def test_what_a_refusal_says_to_write_is_accepted(item, at):
    fields = ["*"] * 5
    fields[at] = item
    try:
        Cron(" ".join(fields))
    except ScheduleError as refused:
        why = str(refused)
    else:
        return
    said = re.search(r"; write (?!something)([0-9a-z*/-]+(?:,[0-9a-z*/-]+)*)(?=$|,? (?!to ))", why)
    if said is None:
        assert re.search(r"write \d+ to \d+$|is not a number|names have three letters|something like", why)
    else:
        fields[at] = said[1]
        Cron(" ".join(fields))


@pytest.mark.parametrize("expression", [None, 5, b"* * * * *", ["*"] * 5])
def test_only_a_text_is_an_expression(expression):
    assert 'a text like "0 3 * * *"' in refusal(expression)


def test_a_refusal_is_a_value_error_and_a_declaration_error():
    assert issubclass(ScheduleError, ValueError)
    assert issubclass(ScheduleError, DeclarationError)


@pytest.mark.parametrize(
    "expression",
    [
        "0," * 500_000 + "0 * * * *",
        "*" * 1_000_000,
        " " * 1_000_000,
        "0-99999999 * * * *",
        "0-99999999/1 * * * *",
        "*/99999999999 * * * *",
        "*/99999999999999999999 * * * *",
        "9" * 499,
        "0,0,0," * 80 + " * * * *",
        "@" + "a" * 490,
        "," * 490 + " * * * *",
        "1,(2,(3,,4)),[5] * * * *",
        "0," * 240 + " * * * *",
        "0-59," * 90 + " * * * *",
        "*/" * 200 + "5 * * * *",
        "1-" * 200 + "5 * * * *",
        "0 0 * " + "jan" * 150 + " *",
        "\n" * 1_000_000,
        "\0" * 1_000_000,
        "0 0 * * *\0",
        "0\0 0 * * *",
        "\N{FULLWIDTH DIGIT ZERO} 0 * * *",
        "\N{ARABIC-INDIC DIGIT ZERO}" * 490,
        "\N{SUPERSCRIPT TWO} 0 * * *",
        "\N{RIGHT-TO-LEFT OVERRIDE}0 0 * * *",
        "0\N{IDEOGRAPHIC SPACE}0 * * *",
        "\ud800 0 * * *",
        "0\v0\v*\v*\v*",
        "1_0 * * * *",
        "0x10 * * * *",
        "1e9 * * * *",
    ],
)
def test_a_hostile_expression_is_refused_at_once_and_briefly(expression):
    began = time.thread_time()
    text = refusal(expression)
    assert time.thread_time() - began < 0.2
    assert len(text) < 400


@pytest.mark.parametrize(
    "expression",
    [
        ",".join(["0"] * 240) + " * * * *",
        ",".join(["0-59"] * 90) + " * * * *",
        " ".join(",".join(map(str, values)) for values in (range(60), range(24), range(1, 32), range(1, 13), range(8))),
    ],
)
def test_a_long_list_ticks_and_costs_nothing(expression):
    began = time.perf_counter()
    Cron(expression, "Europe/Madrid").next(START)
    assert time.perf_counter() - began < 0.2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("@Hourly", "0 * * * *"),
        ("@DAILY", "0 0 * * *"),
        (" @weekly ", "0 0 * * sun"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("0 0 * * 1-7/2", "0 0 * * mon,wed,fri,sun"),
        ("0 0 * JAN-mar Mon-FRI", "0 0 * 1-3 1-5"),
        ("0 0 * * 7", "0 0 * * 0"),
        ("00 003 01 * *", "0 3 1 * *"),
        ("*,5 * * * *", "* * * * *"),
        ("48 14 31 jun sun", "48 14 * jun sun"),
        ("0 0 15 * 0-6", "0 0 * * *"),
        ("0 0 1-31 * fri", "0 0 * * *"),
        ("*/1 */1 */1 */1 */1", "* * * * *"),
        ("0 0 7,*/10 * mon", "0 0 1,7,11,21,31 * mon"),
    ],
)
def test_two_ways_to_write_the_same(one, other):
    assert list(islice(Cron(one).next_many(START), 40)) == list(islice(Cron(other).next_many(START), 40))


_WORDS = st.sampled_from([*"*057-/,LW#?", "31", "12", "99", "jan", "Sun", "@daily"])
_FIELD = st.lists(_WORDS, min_size=1, max_size=4).map("".join)
_EXPRESSION = st.lists(_FIELD, min_size=4, max_size=6).map(" ".join)


@settings(max_examples=300, deadline=None)
@given(_EXPRESSION | st.text())
def test_whatever_is_written_ticks_or_is_refused(expression):
    try:
        cron = Cron(expression)
    except ScheduleError as error:
        refused = str(error)
        assert refused.startswith("cron expression") and len(refused) < 400
        return
    ticks = list(islice(cron.next_many(START), 3))
    assert START < ticks[0] < ticks[1] < ticks[2]
    assert all(cron._fields.fit(tick) for tick in ticks)


def test_the_leap_day_is_found_across_a_century_without_one():
    ticks = Cron("0 0 29 2 *").next_many(datetime(2096, 3, 1, tzinfo=UTC))
    assert [tick.date().isoformat() for tick in islice(ticks, 2)] == ["2104-02-29", "2108-02-29"]


def test_a_leap_day_on_one_weekday_is_found():
    assert Cron("0 0 29 2 */6").next(datetime(2096, 3, 1, tzinfo=UTC)).isoformat() == "2116-02-29T00:00:00+00:00"
    assert Cron("0 0 */28 2 */6").next(START).isoformat() == "2025-02-01T00:00:00+00:00"


def test_a_schedule_ends_with_the_calendar():
    with pytest.raises(ScheduleError, match="a datetime can hold"):
        Cron("0 0 29 2 *").next(datetime(9998, 1, 1, tzinfo=UTC))
    with pytest.raises(ScheduleError, match="a datetime can hold"):
        Cron("@hourly", "Europe/Madrid").next(datetime.max.replace(tzinfo=UTC))
