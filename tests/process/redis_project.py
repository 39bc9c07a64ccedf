"""A project whose queue is in Redis and whose effects are in a database."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import redis

from jfast_sync.config import load_config
from jfast_sync.core import JFast
from jfast_sync.tasks.registry import Registry
from tests.process.project import _TEMPLATE, Project, _toml
from tests.process.store import EFFECTS, ONCE, JobRow, Store

TAG = "{jfast:jobs}:"


class RedisStore(Store):
    """Reads jobs from Redis, by the plain driver, and effects from the database."""

    def __init__(self, dsn: str, redis_url: str) -> None:
        super().__init__(dsn)
        self.redis_url = redis_url

    def jobs(self, status: str | None = None) -> list[JobRow]:
        with closing(redis.Redis.from_url(self.redis_url, protocol=2)) as client:
            pipeline = client.pipeline(transaction=True)
            for part in ("jobs", "meta", "errors"):
                pipeline.hgetall(TAG + part)
            for part in ("dead", "leases"):
                pipeline.zrange(TAG + part, 0, -1)
            stored, meta, errors, dead, leases = pipeline.execute()
        states: dict[bytes, str] = dict.fromkeys(leases, "running") | dict.fromkeys(dead, "dead")
        found = [self._row(name, body, meta, errors, states.get(name, "pending")) for name, body in stored.items()]
        return sorted((row for row in found if status in (None, row.status)), key=lambda row: row.id)

    @staticmethod
    def _row(name: bytes, stored: bytes, meta: Any, errors: Any, status: str) -> JobRow:
        job = json.loads(stored.partition(b"\n")[2])
        attempts = int(meta[name].split()[1]) if name in meta else 0
        error = errors[name].partition(b"\0")[0].decode() if name in errors else None
        return JobRow(job["id"], job["task"], status, attempts, error)

    def unfinished(self) -> int:
        with closing(redis.Redis.from_url(self.redis_url, protocol=2)) as client:
            return int(client.hlen(TAG + "jobs")) - int(client.zcard(TAG + "dead"))


class RedisProject(Project):
    """As `Project`; the workers reach Redis by `url`, this process by `enqueue_url` (no fault is made on that way)."""

    def __init__(self, folder: Path, dsn: str, url: str, *, enqueue_url: str | None = None, **queue: object) -> None:
        self.folder = folder
        shutil.copytree(_TEMPLATE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        lines = ["[plugins]", 'enabled = ["observability", "database", "queue", "outbox", "cache"]']
        lines += ["[plugin.cache]", f'url = "{url}"', "[plugin.database]", f'dsn = "{dsn}"']
        lines += ["[plugin.queue]", 'backend = "redis"', *(f"{key} = {_toml(value)}" for key, value in queue.items())]
        (folder / "jfast.toml").write_text("\n".join(lines) + "\n")
        self.store = RedisStore(dsn, enqueue_url or url)
        config = load_config(folder, overrides={"cache": {"url": enqueue_url or url}})
        self.jfast = JFast(config, tasks=Registry())
        self.jfast.setup()
        self.store.execute(EFFECTS)
        self.store.execute(ONCE)
        self._workers = []

    def look_at(self, url: str) -> None:
        """Read the jobs from this server from now on."""
        self.store = RedisStore(self.store.dsn, url)
