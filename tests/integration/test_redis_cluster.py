"""The Redis queue on a cluster: every key in one slot, found from any node, and followed when it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from jfast_sync.errors import UnavailableError
from jfast_sync.outcome import Done
from jfast_sync.ports import Claimed, Held, Settled
from jfast_sync.queues.redis import RedisQueue
from jfast_sync.queues.redis.connect import client, pool
from jfast_sync.ticks.redis import RedisTickStore
from tests.contract.steps import claim, extend, ids, put_many, settle, take
from tests.integration.test_redis_server import all_ways, wakes
from tests.leaks import wait_for_no_connection_to
from tests.servers import RedisServer, find_redis
from tests.servers.network import HOST, free_port
from tests.servers.redis_cluster import SLOTS, RedisCluster, text, wait_for_cluster
from tests.waiting import eventually

KEY = "{jfast:jobs}:jobs"


@pytest.fixture
def old(redis_server: RedisServer) -> bool:
    """Whether the servers here are too old for a second port of one's choice."""
    version: str = redis_server.command("INFO", "server")["redis_version"]
    return int(version.partition(".")[0]) < 7


@pytest.fixture
def cluster(old: bool) -> Iterator[RedisCluster]:
    with RedisCluster(KEY, old=old) as made:
        yield made
        ports = [server.port for server in (made.owner, made.replica, *made.others)]
    for port in ports:
        wait_for_no_connection_to(port)


def unless_away(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except UnavailableError:
        return None


def test_a_cluster_finds_every_key_declared_and_in_one_slot(old: bool):
    settings = {"cluster-enabled": "yes"} | ({} if old else {"cluster-port": str(free_port())})
    server = find_redis(private=True, settings=settings)
    try:
        server.command("CLUSTER", "ADDSLOTS", *range(SLOTS))
        wait_for_cluster(server)
        queue = RedisQueue(server.url, key_prefix="app:", keep_done=100.0)
        all_ways(queue)
        queue.close()
    finally:
        server.close()


def test_the_node_that_keeps_the_queue_is_found_from_any_other(cluster: RedisCluster):
    other, _ = cluster.others
    queue = RedisQueue(other.url)
    all_ways(queue)
    take(queue, 12)
    wakes(queue)
    queue.close()
    assert other.command("DBSIZE") == 0


def test_ticks_are_claimed_from_any_node(cluster: RedisCluster):
    for server in (cluster.owner, *cluster.others):
        store = RedisTickStore(client(pool(server.url, max_connections=2, tls={})))
        with store.claiming("nightly", datetime(2026, 1, 1, tzinfo=UTC), by=str(server.port)) as claimed:
            pass
        assert claimed.outcome is (Claimed.WON if server is cluster.owner else Claimed.LOST)
        store.close()


def test_a_failover_within_the_cluster_is_followed_also_when_the_first_known_node_is_gone(cluster: RedisCluster):
    queue = RedisQueue(cluster.others[0].url)
    jobs = put_many(queue, 5)
    held, *_ = take(queue, 2)
    cluster.replicate()
    cluster.fail_over()

    leases = eventually(lambda: unless_away(lambda: claim(queue, 3)), 30, what="the nodes to know of it")
    assert ids(leases) == [job.id for job in jobs[2:]]
    assert extend(queue, held) is Held.YES
    cluster.others[0].kill()  # what the URL names
    assert settle(queue, held, Done()) is Settled.APPLIED
    queue.close()


def test_a_slot_that_moves_takes_the_queue_with_it(cluster: RedisCluster):
    queue = RedisQueue(cluster.owner.url)
    jobs = put_many(queue, 5)
    done, *held = take(queue, 2)
    slot = cluster.owner.command("CLUSTER", "KEYSLOT", KEY)
    target = cluster.others[0]
    source, destination = (text(server.command("CLUSTER", "MYID")) for server in (cluster.owner, target))
    target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source)
    cluster.owner.command("CLUSTER", "SETSLOT", slot, "MIGRATING", destination)
    first, *rest = cluster.owner.command("CLUSTER", "GETKEYSINSLOT", slot, 100)
    cluster.owner.command("MIGRATE", HOST, target.port, first, 0, 5000)
    with pytest.raises(UnavailableError):
        claim(queue, 1)
    assert rest
    cluster.owner.command("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *rest)
    for server in (target, cluster.owner, cluster.others[1]):
        server.command("CLUSTER", "SETSLOT", slot, "NODE", destination)

    assert ids(take(queue, 3)) == [job.id for job in jobs[2:]]
    assert settle(queue, done, Done()) is Settled.APPLIED
    assert [extend(queue, lease) for lease in held] == [Held.YES]
    queue.close()
