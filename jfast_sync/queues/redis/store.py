"""What every part of the Redis queue stands on: the pool, scripts run once, the known lanes, outages."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from jfast_sync.errors import UnavailableError
from jfast_sync.queues.redis.connect import client, pool
from jfast_sync.queues.redis.keys import Keys, Lane
from jfast_sync.queues.redis.lua import Script

__all__ = ["RedisStore"]

log = logging.getLogger("jfast_sync.queues.redis")

T = TypeVar("T")

_OUTDATED: Final = b"LANES"
_REPEATS: Final = 2
_LANES_CHANGED: Final = 20


class RedisStore:
    """The keys of one queue on one server.

    Args:
        url: the server; see :func:`jfast_sync.queues.redis.connect.pool`.
        name: the queue's name, ``jfast:jobs``.
        key_prefix: put before every key.
        visibility_timeout: seconds a lease runs.
        max_connections: connections this process keeps at most.
        tls: redis-py's ``ssl_*`` options.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        key_prefix: str,
        visibility_timeout: float,
        max_connections: int,
        tls: Mapping[str, str],
    ) -> None:
        self.keys = Keys(key_prefix, name)
        self._fixed = [key.encode() for key in self.keys.fixed]
        self.visibility_timeout = visibility_timeout
        self._pool = pool(url, max_connections=max_connections, tls=tls)
        self._redis: Any = client(self._pool)
        self._lanes: tuple[Lane, ...] = ()
        self._version = "0"
        self._failing_since: float | None = None
        self._no_recovery_until = 0.0
        self._callers = threading.local()

    # --- running -------------------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], T]) -> T:
        """Do something on the server; errors become ours, and how long it could not be reached is noted."""
        from jfast_sync.queues.redis.failures import WrongType, translated

        try:
            with translated():
                result = work()
        except UnavailableError:
            if self._failing_since is None:
                self._failing_since = time.monotonic()
            raise
        except WrongType as exc:
            raise self._named(exc) from exc.__cause__
        if self._failing_since is not None:
            self._after_outage(time.monotonic() - self._failing_since)
        return result

    def _run(
        self, script: Script, lanes: Sequence[Lane], *args: Any, version: str = "", answer: str | None = None
    ) -> Any:
        """Run a script, twice at most where the reply to the first was lost."""
        keys: list[str | bytes] = [*self._fixed]
        for lane in lanes:
            keys += (self.keys.ready(lane), self.keys.wake_queue(lane.queue))
        if answer is not None:
            keys.append(answer)
        argv = (len(lanes), version, *(lane.name for lane in lanes), *args)
        return self._evaluate(script, keys, argv)

    def _evaluate(self, script: Script, keys: Sequence[str | bytes], argv: Sequence[Any]) -> Any:
        from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

        from jfast_sync.queues.redis.failures import unwrapped

        try:
            return self._redis.execute_command("EVALSHA", script.sha, len(keys), *keys, *argv)
        except NoScriptError:
            return self._redis.execute_command("EVAL", script.text, len(keys), *keys, *argv)
        except ResponseError as exc:
            if isinstance(unwrapped(exc), ReadOnlyError):
                # The name may lead to the new master now. What other threads use is theirs: they are told too.
                self._pool.disconnect(inuse_connections=False)
            raise

    def _ask(self, script: Script, lanes: Sequence[Lane], *args: Any) -> Any:
        """Run a script that may be run twice: what it was told the first time still holds the second time."""
        return self._guarded(lambda: self._repeat(lambda _again: self._run(script, lanes, *args)))

    def _once(self, script: Script, lanes: Sequence[Lane], *args: Any) -> bytes:
        """Run a script that acts once: asked again after a lost reply, it gives the answer it gave."""
        key, nonce = self._caller_key("enqueue"), uuid.uuid4().hex
        return self._replay(script, lanes, args, key, nonce, again=False)

    def _replay(
        self, script: Script, lanes: Sequence[Lane], args: Sequence[Any], key: str, nonce: str, *, again: bool
    ) -> bytes:
        def run(repeated: bool) -> bytes:
            found: bytes = self._run(script, lanes, nonce, int(again or repeated), *args, answer=key)
            return found

        return self._guarded(lambda: self._repeat(run))

    def _repeat(self, run: Callable[[bool], T]) -> T:
        from jfast_sync.queues.redis.failures import is_lost

        for number in range(_REPEATS):
            try:
                return run(number > 0)
            except Exception as exc:
                if number == _REPEATS - 1 or not is_lost(exc):
                    raise
                log.debug("asked Redis again, the reply was lost: %s", type(exc).__name__)
        raise AssertionError

    def _caller_key(self, kind: str) -> str:
        """Return where this thread's latest answer of a kind is kept: one thread asks one thing at a time."""
        if getattr(self._callers, "pid", None) != os.getpid():
            self._callers.pid, self._callers.name = os.getpid(), uuid.uuid4().hex
        return self.keys.answer(f"{kind}:{self._callers.name}")

    # --- lanes ---------------------------------------------------------------------------------------------------

    def _with_lanes(
        self, ask: Callable[[Sequence[Lane], str], Any], chosen: Callable[[Lane], bool] | None = None
    ) -> Any:
        """Ask with all known lanes (that are ``chosen``), and again with the new ones when there are more."""
        for _ in range(_LANES_CHANGED):
            lanes = [lane for lane in self._lanes if chosen is None or chosen(lane)]
            answer = ask(lanes, self._version)
            if answer != _OUTDATED:
                return answer
            self._load_lanes()
        raise UnavailableError("the queue's lanes change faster than they can be read")

    def _load_lanes(self) -> None:
        def load() -> Mapping[bytes, bytes]:
            found: Mapping[bytes, bytes] = self._redis.execute_command("HGETALL", self.keys.lanes)
            return found

        found = self._guarded(load)
        names = [name.decode(errors="replace") for name in found if b":" in name]
        self._lanes = tuple(sorted({Lane.of(name) for name in names}, key=lambda lane: (-lane.priority, lane.queue)))
        self._version = found.get(b"version", b"0").decode()

    # --- trouble -------------------------------------------------------------------------------------------------

    def _named(self, exc: Exception) -> Exception:
        """Say which key holds something else."""
        from jfast_sync.queues.redis.failures import WrongType

        wrong = [f"{key} is a {kind}, not a {wanted}" for key, kind, wanted in self._wrong_keys()]
        if not wrong:
            return exc
        return WrongType(f"{'; '.join(wrong)}: somebody else's; rename it, or choose another [plugin.cache] key_prefix")

    def _wrong_keys(self) -> Iterable[tuple[str, str, str]]:
        keys = self.keys
        wanted = {
            **dict.fromkeys((keys.jobs, keys.meta, keys.errors, keys.kept, keys.lanes, keys.state), "hash"),
            **dict.fromkeys((keys.leases, keys.dead, keys.done), "zset"),
            keys.wake: "list",
        }
        if self._type(keys.lanes) in ("hash", "none"):
            self._load_lanes()
        for lane in self._lanes:
            wanted[keys.ready(lane)], wanted[keys.wake_queue(lane.queue)] = "zset", "list"
        for key, kind in wanted.items():
            if (found := self._type(key)) not in (kind, "none"):
                yield key, found, kind

    def _type(self, key: str) -> str:
        found: bytes = self._guarded(lambda: self._redis.execute_command("TYPE", key))
        return found.decode()

    def _after_outage(self, seconds: float) -> None:
        """Give the holders of leases about one lease's time to come back, where they may have missed a renewal.

        They renew at a third of a lease, so a shorter outage has cost nobody a lease.
        """
        self._failing_since = None
        if seconds >= self.visibility_timeout / 3:
            self._no_recovery_until = time.monotonic() + self.visibility_timeout
