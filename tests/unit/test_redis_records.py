"""What Redis stores, read back: headers, meta lines, lanes, errors; and errors of the driver made ours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions as driver
from redis.sentinel import MasterNotFoundError

from jfast_sync.config.forms import redis_url
from jfast_sync.errors import ConfigError, PayloadError, SchemaError, UnavailableError
from jfast_sync.job import Job
from jfast_sync.queues.redis.connect import pool
from jfast_sync.queues.redis.failures import is_lost, translate
from jfast_sync.queues.redis.keys import Keys, Lane
from jfast_sync.queues.redis.records import (
    Meta,
    Record,
    at,
    done_row,
    joined_error,
    micros,
    packed,
    shown_name,
    split_error,
    unpacked,
)
from jfast_sync.queues.redis.server import Server


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_instant_survives(instant: datetime):
    assert at(micros(instant)) == instant


@pytest.mark.parametrize("microseconds", [float("inf"), -float("inf"), 1e30, -1e30])
def test_an_instant_outside_of_the_calendar_is_its_edge(microseconds: float):
    assert at(microseconds).year in (1, 9999)


@given(st.integers(-9, 9), st.text(min_size=1, max_size=20))
def test_a_lane_survives_its_name(priority: int, queue: str):
    assert Lane.of(Lane(priority, queue).name) == Lane(priority, queue)


@pytest.mark.parametrize("name", ["", "x", "x:y", "5", "5:", ":y"])
def test_what_is_no_lane_is_the_ordinary_one(name: str):
    assert Lane.of(name) == Lane(0, "default")


@given(st.one_of(st.uuids().map(lambda each: each.hex), st.text(min_size=1), st.text(":", min_size=1)))
def test_an_id_survives_its_stored_name(job_id: str):
    assert unpacked(packed(job_id)) == job_id


@given(st.lists(st.one_of(st.uuids().map(lambda each: each.hex), st.text(":ab", min_size=1, max_size=3)), unique=True))
def test_two_ids_have_two_names(ids: list[str]):
    assert len({packed(job_id) for job_id in ids}) == len(ids)


def test_a_generated_id_is_stored_in_23_bytes():
    assert len(packed("0" * 32)) == 23
    assert packed("0" * 31) == b"0" * 31
    assert packed("A" * 32) == b"A" * 32


@pytest.mark.parametrize("name", [b":", b":x", b":no name", b":" + b"A" * 30, b"\xff", b"::\xff"])
def test_what_is_no_name_is_none(name: bytes):
    with pytest.raises(ValueError):
        unpacked(name)
    assert shown_name(name)


def test_every_key_has_the_tag():
    keys = Keys("app:", "jfast:jobs")
    named = [*keys.fixed, keys.counts, keys.answer("x"), keys.ready(Lane(-3, "mail")), keys.wake_queue("mail")]
    assert all(key.startswith("app:{jfast:jobs}:") for key in named)
    assert keys.ready(Lane(-3, "mail")) == "app:{jfast:jobs}:ready:-3:mail"
    assert keys.fixed == (
        keys.jobs, keys.meta, keys.errors, keys.leases, keys.dead,
        keys.done, keys.kept, keys.lanes, keys.state, keys.wake,
    )  # fmt: skip


def test_a_record_becomes_a_job_with_what_stands_beside_it():
    job = Job(id="x", task="t", payload={"n": 1}, queue="mail", priority=3, max_attempts=4)
    record = Record.of("x", b"1 1000000 4 3:mail\n" + job.to_wire())
    meta = Meta.of(b"abc-1 2 1 5000000 4000000 1 3000000 worker with\nodd name")
    assert meta == Meta("abc-1", 2, 1, 5_000_000, 4_000_000, True, 3_000_000, "worker with\nodd name")
    lease = record.lease(meta, meta.claimed, "E: x")
    assert (lease.job.id, lease.job.payload, lease.job.attempts, lease.job.error) == ("x", {"n": 1}, 2, "E: x")
    assert (lease.token, lease.lapses, lease.alone) == ("abc-1", 1, False)
    assert lease.snoozed_since == datetime(1970, 1, 1, 0, 0, 4, tzinfo=UTC)
    assert lease.job.available_at == datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)
    assert lease.job.created_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", [None, b"", b"x", b"- 1 2 3", b"a b c d e f g h"])
def test_what_is_no_meta_is_a_job_never_claimed(text: bytes | None):
    assert Meta.of(text) == Meta()


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff", b"[]", b'{"id": "y", "task": "t"}', b'{"id": "x", "task": 5}'])
def test_a_body_that_is_not_this_job_is_refused_and_shown_raw(body: bytes):
    record = Record.of("x", b"1 1000000 4 3:mail\n" + body)
    with pytest.raises(PayloadError):
        record.lease(Meta(), 0, None)
    letter = record.dead(Meta(attempts=2), 9e6, b"PayloadError: no")
    assert letter.raw == body
    assert (letter.job.id, letter.job.queue, letter.job.priority, letter.job.attempts) == ("x", "mail", 3, 2)
    assert letter.job.error == "PayloadError: no"


def test_a_stored_value_without_a_header_is_all_body():
    assert Record.of("x", b"whatever\nit is").body == b"whatever\nit is"


@pytest.mark.parametrize("pair", [(None, None), ("E: x", None), ("E: x", "Traceback\nline"), ("E: ☃", "☃")])
def test_an_error_survives(pair: tuple[str | None, str | None]):
    stored = joined_error(*pair)
    assert split_error(stored.encode() if stored else None) == pair


def test_a_kept_job_says_how_long_it_ran():
    stored = b"1 1000000 1 0:default\n" + Job(id="x", task="t").to_wire()
    row = done_row("x", b"2 5000000 8500000\n" + stored)
    assert (row.state, row.job.attempts, row.ran_seconds) == ("done", 2, 3.5)
    assert row.finished_at == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=8.5)


FULL = "command not allowed when used memory > 'maxmemory'."
REPLICA = "You can't write against a read only replica."

# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (driver.OutOfMemoryError(FULL), "full"),
        (driver.ReadOnlyError(REPLICA), "replica"),
        # As Redis 6 says it.
        (driver.ResponseError(f"Error running script (call to f_1): @user_script:7: -OOM {FULL}"), "full"),
        (driver.ResponseError(f"Error running script (call to f_1): @user_script:7: -READONLY {REPLICA}"), "replica"),
        (driver.BusyLoadingError("Redis is loading the dataset in memory"), "loading"),
        (MasterNotFoundError("No master found for 'jobs' : <Redis(...)> - ConnectionError()"), "for 'jobs'"),
        (driver.AuthenticationError("invalid username-password pair"), "refuses this login"),
        (driver.ConnectionError("Connection closed by server."), "cannot be reached"),
        (driver.TimeoutError("Timeout reading from socket"), "cannot be reached"),
        (driver.ResponseError("UNBLOCKED force unblock from blocking operation"), "cannot serve now"),
        (driver.ClusterDownError("The cluster is down"), "cannot serve now"),
        (driver.NoPermissionError("this user has no permissions to run the 'evalsha' command"), "does not allow"),
        (driver.MaxConnectionsError("Too many connections"), "cannot be reached"),
        (OSError("broken"), "cannot be reached"),
    ],
)
def test_trouble_of_the_server_is_an_unavailable_error(error: Exception, words: str):
    found = translate(error)
    assert isinstance(found, UnavailableError)
    assert words in str(found)


def test_a_wrong_type_is_a_schema_error():
    wrong = driver.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
    assert isinstance(translate(wrong), SchemaError)


def test_what_is_ours_and_what_is_nobodys_stay_as_they_are():
    for error in (PayloadError("x"), ValueError("x")):
        assert translate(error) is error


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (driver.ConnectionError("x"), True),
        (ConnectionResetError("x"), True),
        (driver.TimeoutError("x"), False),
        (TimeoutError("x"), False),
        (driver.BusyLoadingError("x"), False),
        (driver.AuthenticationError("x"), False),
        (driver.MaxConnectionsError("x"), False),
        (driver.ReadOnlyError("x"), False),
        (driver.ResponseError("x"), False),
    ],
)
def test_only_a_broken_connection_is_asked_again(error: Exception, lost: bool):
    assert is_lost(error) is lost


# --- where the server is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost:6379/0",
        "redis://user:p%40ss@host:6380/3",
        "rediss://host",
        "unix:///run/redis.sock?db=2",
        "redis+sentinel://one:26379,two:26379/jobs",
        "rediss+sentinel://user:pass@one,two:26380/jobs/5",
    ],
)
def test_urls_that_lead_to_a_server(url: str):
    assert redis_url(url) is None
    made = pool(url, max_connections=5, tls={})
    assert made.connection_kwargs["retry"]._retries == 0
    assert made.connection_kwargs["socket_timeout"] == 6.0
    assert made.max_connections == 5
    assert not made.connection_kwargs.get("decode_responses")


@pytest.mark.parametrize(
    "url", ["redis+sentinel://one:26379", "redis+sentinel:///jobs", "http://x", "redis+sentinel://"]
)
def test_urls_that_lead_nowhere(url: str):
    assert redis_url(url) is not None


def test_a_url_that_cannot_be_read_is_a_configuration_error_without_its_password():
    with pytest.raises(ConfigError) as caught:
        pool("redis+sentinel://user:s3cret@one:port/jobs", max_connections=5, tls={})
    assert "s3cret" not in str(caught.value)


def test_what_a_managed_service_hides_is_taken_to_be_well():
    def command(*words: object) -> dict[str, object]:
        if words[0] == "CONFIG":
            raise UnavailableError("does not allow")
        return {"redis_version": "7.2.4"}

    assert Server.read(command).remarks == ()
