"""A relay over a long backlog: what it takes of memory, and how soon the outbox says how it is."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

import psycopg
import pytest

from jfast_sync.config import load_config
from jfast_sync.core import JFast
from jfast_sync.tasks.registry import Registry

#: Half of it jobs, half events of a thousand keys.
_FILL = """
INSERT INTO jfast_outbox (id, kind, destination, payload, message_key, status, attempts, created_at, available_at)
SELECT md5(n::text), CASE n %% 2 WHEN 0 THEN 'job' ELSE 'event' END, 'bench', CASE n %% 2
    WHEN 0 THEN jsonb_build_object('payload', jsonb_build_object('n', n, 'pad', repeat('x', 200)))
    ELSE jsonb_build_object('id', md5(n::text), 'type', 'bench', 'data', jsonb_build_object('n', n)) END,
    CASE n %% 2 WHEN 1 THEN 'k' || n %% 1000 END, 'pending', 0, clock_timestamp(), clock_timestamp()
FROM generate_series(1, %s) AS n
"""
_RELAY = """
import json, re, sys, time
from pathlib import Path
from jfast_sync.config import load_config
from jfast_sync.core import JFast
from jfast_sync.loop import Deadline
from jfast_sync.messaging import delivery
from jfast_sync.outbox.relay import Relay, RelayOptions
from jfast_sync.tasks.registry import Registry

class Bus:  # takes everything and keeps nothing
    bus = "null"
    taken = 0
    def send(self, publications):
        self.taken += len(publications)
        return [None] * len(publications)
    def close(self): ...

bus = Bus()
with JFast(load_config(overrides=json.loads(sys.argv[1])), tasks=Registry(), bus=bus) as jf:
    relay = Relay(jf.messages, delivery(jf), RelayOptions())
    began = time.monotonic()
    relay.start()
    while bus.taken < int(sys.argv[2]):
        assert time.monotonic() - began < 200, bus.taken
        time.sleep(0.05)  # between two looks at what the bus has taken
    relay.stop()
    relay.join(Deadline(10))
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1))
    print(json.dumps({"megabytes": peak / 1024, "seconds": time.monotonic() - began, "events": bus.taken}))
"""


@pytest.mark.parametrize(("rows", "part"), [(20_000, 2_000), pytest.param(1_000_000, 100_000, marks=pytest.mark.long)])
def test_a_long_backlog(postgres_dsn: str, redis_url: str, rows: int, part: int) -> None:
    overrides: dict[str, dict[str, object]] = {
        "plugins": {"enabled": ["database", "queue", "outbox", "cache"]},
        "database": {"dsn": postgres_dsn},
        "queue": {"backend": "redis"},
        "cache": {"url": redis_url},
    }
    with JFast(load_config(overrides=overrides), tasks=Registry()) as jf:
        jf.setup()
        with psycopg.connect(postgres_dsn, autocommit=True) as connection:
            connection.execute(_FILL, (rows,))
            connection.execute("ANALYZE jfast_outbox")

        command = [sys.executable, "-c", _RELAY, json.dumps(overrides), str(part)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=230, check=False)
        assert done.returncode == 0, done.stderr
        relay = json.loads(done.stdout)

        assert jf.messages is not None
        took = []
        for _ in range(20):
            began = time.perf_counter()
            jf.messages.stats()
            took.append(time.perf_counter() - began)
    print(
        f"{rows} rows: a relay that sent {relay['events']} of the events in {relay['seconds']:.1f} s had at most "
        f"{relay['megabytes']:.0f} MB; status in {statistics.median(took) * 1000:.1f} ms"
    )
    assert relay["megabytes"] < 100
    assert statistics.median(took) < 0.1
