"""Ticks claimed in Redis: each schedule's latest, which never moves back and never expires.

A claim is first a reservation of that one tick, with an end: a process that dies or is stopped inside it delays this
tick and no other. Whether it still holds is asked right before the tick's job is enqueued; then the tick becomes the
schedule's latest.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from jfast_sync.errors import UnavailableError
from jfast_sync.ports import Claimed, ClaimLostError, TickClaim
from jfast_sync.redact import error_text

__all__ = ["RedisTickStore"]

_RESERVED: Final = 15_000  # milliseconds; an enqueue that takes longer fails by the queue's own timeouts
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

# KEYS: latest, reservation. ARGV: name, tick, token, milliseconds.
_RESERVE: Final = """
local latest = redis.call('HGET', KEYS[1], ARGV[1])
if latest and tonumber(latest) >= tonumber(ARGV[2]) then return 'lost' end
local held = redis.call('GET', KEYS[2])
if held and held ~= ARGV[3] then return 'busy' end
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
return 'won'
"""
_HOLD: Final = """
local latest = redis.call('HGET', KEYS[1], ARGV[1])
if latest and tonumber(latest) >= tonumber(ARGV[2]) then return 'lost' end
if redis.call('GET', KEYS[2]) ~= ARGV[3] then return 'lost' end
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return 'held'
"""
_CONFIRM: Final = """
local latest = redis.call('HGET', KEYS[1], ARGV[1])
if not latest or tonumber(latest) < tonumber(ARGV[2]) then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
if redis.call('GET', KEYS[2]) == ARGV[3] then redis.call('DEL', KEYS[2]) end
return 'done'
"""
_RELEASE: Final = """
if redis.call('GET', KEYS[2]) == ARGV[3] then redis.call('DEL', KEYS[2]) end
return 'done'
"""


class RedisTickStore:
    """Implements :class:`jfast_sync.ports.TickStore`; from any thread.

    Args:
        client: a redis-py client that repeats no command by itself; it is closed with the store.
        key_prefix: put before every key.
    """

    store = "cache"

    def __init__(self, client: Any, *, key_prefix: str = "") -> None:
        self._client = client
        self._latest = f"{key_prefix}{{jfast:ticks}}:latest"
        self._reservation = f"{key_prefix}{{jfast:ticks}}:claiming:"

    def now(self) -> datetime:
        seconds, micros = self._call("TIME")
        return _EPOCH + timedelta(seconds=int(seconds), microseconds=int(micros))

    def latest(self, names: Sequence[str]) -> dict[str, datetime]:
        if not names:
            return {}
        found = self._call("HMGET", self._latest, *names)
        pairs = zip(names, found, strict=True)
        return {name: _EPOCH + int(micros) * _MICROSECOND for name, micros in pairs if micros is not None}

    @contextmanager
    def claiming(self, name: str, tick: datetime, *, by: str) -> Iterator[TickClaim]:
        token = f"{by}/{secrets.token_hex(8)}"
        outcome = Claimed(self._script(_RESERVE, name, tick, token))
        if outcome is not Claimed.WON:
            yield TickClaim(outcome=outcome)
            return

        def detach() -> None:
            if self._script(_HOLD, name, tick, token) != "held":
                raise ClaimLostError(f"the reservation of {tick.isoformat()} ran out")

        try:
            yield TickClaim(outcome=outcome, detach=detach)
        except BaseException:
            with suppress(UnavailableError):  # it runs out by itself
                self._script(_RELEASE, name, tick, token)
            raise
        self._script(_CONFIRM, name, tick, token)

    def prune(self, retention: timedelta) -> int:  # noqa: ARG002 - the port's
        return 0  # only the latest is kept at all

    def close(self) -> None:
        self._client.close()
        self._client.connection_pool.disconnect()

    def _script(self, script: str, name: str, tick: datetime, token: str) -> str:
        """Run a script; each may be run twice where a reply was lost, because the token tells who asks."""
        micros = (tick - _EPOCH) // _MICROSECOND
        keys = (self._latest, f"{self._reservation}{micros}:{name}")
        arguments = ("EVAL", script, len(keys), *keys, name, micros, token, _RESERVED)
        try:
            answer: bytes = self._call(*arguments)
        except UnavailableError:
            answer = self._call(*arguments)
        return answer.decode()

    def _call(self, *command: Any) -> Any:
        from redis.exceptions import ReadOnlyError, RedisError

        try:
            return self._client.execute_command(*command)
        except (RedisError, OSError) as exc:
            if isinstance(exc, ReadOnlyError) or "-READONLY" in str(exc):  # inside a script's error before Redis 7
                self._client.connection_pool.disconnect()  # the name may lead to the new master now
                raise UnavailableError("this Redis is a replica now and takes no writes") from exc
            raise UnavailableError(f"Redis cannot serve the scheduler now: {error_text(exc)}") from exc
