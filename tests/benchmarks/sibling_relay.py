"""Lets the asynchronous sibling's relay send a whole backlog, in its own virtual environment; prints the seconds.

Arguments: the database's DSN, the Redis URL, the batch size.
"""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import sys
import time

from jfastframework.outbox import OutboxRelay
from jfastframework.queues.redis import RedisQueue
from redis.asyncio import Redis
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine


async def main(dsn: str, redis_url: str, batch_size: str) -> None:
    engine = create_async_engine(dsn)
    client = Redis.from_url(redis_url, decode_responses=True)
    relay = OutboxRelay(engine, queue=RedisQueue(client, name="bench:sibling"), batch_size=int(batch_size))
    async with engine.connect() as connection:  # both connections are open before the clock starts
        await connection.execute(text("SELECT 1"))
    await client.ping()
    began = time.perf_counter()
    while await relay.relay_once():
        pass
    print(time.perf_counter() - began)
    await client.aclose()
    await engine.dispose()


asyncio.run(main(*sys.argv[1:]))
