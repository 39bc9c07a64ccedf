"""The relay over a backlog on PostgreSQL with Redis behind it, beside the asynchronous sibling's and the driver alone.

Only ratios are asserted; the short round asserts little, since it may run on a loaded machine. The figures are printed
(``tox -e bench``).
"""

from __future__ import annotations

import faulthandler
import json
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from jfast_sync import JFast, Job
from jfast_sync.config import load_config
from jfast_sync.loop import Deadline
from jfast_sync.messaging import delivery
from jfast_sync.outbox.relay import Relay, RelayOptions
from jfast_sync.tasks.registry import Registry
from tests.sharing.environment import sibling_python
from tests.waiting import eventually

pytestmark = pytest.mark.timed

SIBLING = Path(__file__).with_name("sibling_relay.py")
BATCH = 100  # what both take by default
CONFIG = """[plugins]
enabled = ["database", "queue", "outbox", "cache"]
[plugin.database]
dsn = "{dsn}"
[plugin.queue]
backend = "redis"
[plugin.cache]
url = "{url}"
"""


class Bench:
    """One outbox that is filled again for everybody who empties it."""

    def __init__(self, dsn: str, redis_url: str, folder: Path, rows: int) -> None:
        (folder / "jfast.toml").write_text(CONFIG.format(dsn=dsn, url=redis_url))
        self.dsn, self.redis_url, self.rows = dsn, redis_url, rows
        self.app = JFast(load_config(folder, environ={}), tasks=Registry())
        self.app.setup()

    def fill(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("TRUNCATE jfast_outbox")
            for start in range(0, self.rows, 1000):
                with self.app.session() as session:
                    jobs = [
                        Job(task="bench.noop", payload={"n": n, "pad": "x" * 100})
                        for n in range(start, min(start + 1000, self.rows))
                    ]
                    self.app.outbox.enqueue_many(session, jobs)
            connection.execute("VACUUM ANALYZE jfast_outbox")

    def assert_empty(self) -> None:
        with psycopg.connect(self.dsn) as connection:
            counts = connection.execute("SELECT status, count(*) FROM jfast_outbox GROUP BY status").fetchall()
        assert counts == [("published", self.rows)]

    def ours(self) -> float:
        """Rows per second of our relay."""
        assert self.app.messages is not None
        self.fill()
        relay = Relay(self.app.messages, delivery(self.app), RelayOptions(batch_size=BATCH))
        self.app.queue.stats()  # both connections are open before the clock starts
        pending = "SELECT 1 FROM jfast_outbox WHERE status = 'pending' LIMIT 1"

        def drain() -> None:
            relay.start()
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                eventually(lambda: connection.execute(pending).fetchone(), 300, until=lambda found: found is None)

        speed = self.rows / timed(drain)
        relay.stop()
        assert relay.join(Deadline(10))
        self.assert_empty()
        assert self.app.queue.stats().ready == self.rows
        return speed

    def siblings(self, python: Path) -> float:
        """Rows per second of the sibling's relay, in a process of its own."""
        self.fill()
        dsn = self.dsn.replace("postgresql:", "postgresql+asyncpg:", 1)
        command = [str(python), str(SIBLING), dsn, self.redis_url, str(BATCH)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        self.assert_empty()
        with closing(redis.Redis.from_url(self.redis_url, protocol=2)) as client:
            assert client.llen("bench:sibling:pending") == self.rows
        return self.rows / float(done.stdout)

    def raw(self) -> tuple[float, float]:
        """Jobs per second that the driver alone pushes, one by one and a batch at a time."""
        body = json.dumps({"id": "x" * 32, "task": "bench.noop", "payload": {"n": 1, "pad": "x" * 100}, "max": 3})
        with closing(redis.Redis.from_url(self.redis_url, protocol=2)) as client:

            def one_by_one() -> None:
                for _ in range(self.rows):
                    client.lpush("raw", body)

            def in_batches() -> None:
                for _ in range(self.rows // BATCH):
                    pipeline: Any = client.pipeline(transaction=False)
                    for _ in range(BATCH):
                        pipeline.lpush("raw", body)
                    pipeline.execute()

            return self.rows / timed(one_by_one), self.rows / timed(in_batches)

    def compare(self, python: Path) -> dict[str, float]:
        with self.app:
            theirs, ours, (single, batched) = self.siblings(python), self.ours(), self.raw()
        print(
            f"{self.rows} rows: ours {ours:,.0f} rows/s, the sibling's {theirs:,.0f} rows/s ({ours / theirs:.1f}); "
            f"driver alone {single:,.0f} jobs/s one by one, {batched:,.0f} jobs/s in batches"
        )
        return {"ours": ours, "sibling": theirs, "raw": single}


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def test_the_relay_beside_the_siblings(postgres_dsn: str, redis_url: str, tmp_path: Path) -> None:
    speed = Bench(postgres_dsn, redis_url, tmp_path, 1_000).compare(sibling_python())
    assert speed["ours"] > speed["sibling"]


@pytest.mark.long
def test_the_relay_beside_the_siblings_in_full(postgres_dsn: str, redis_url: str, tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # on a busy machine longer than pytest watches over a test
    # Several rounds: on a shared machine one side of a round may have had less of the processor.
    rounds = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        rounds.append(Bench(postgres_dsn, redis_url, folder, 20_000).compare(sibling_python()))
        with closing(redis.Redis.from_url(redis_url)) as client:
            client.flushdb()
    assert max(speed["ours"] / min(5 * speed["sibling"], speed["raw"]) for speed in rounds) >= 1
