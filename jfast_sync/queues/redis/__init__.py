"""The queue on Redis or Valkey.

Ready and delayed jobs wait in one sorted set per lane (named queue and priority) by their due time, running ones in one
sorted set by the end of their lease, so nothing has to be promoted and nothing is searched for. Bodies are written once
and never again; what changes about a job stands beside them. Every transition is one Lua script.
"""

from __future__ import annotations

from jfast_sync.queues.redis.queue import RedisQueue

__all__ = ["RedisQueue"]
