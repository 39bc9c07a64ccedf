"""Letting time pass in Redis by moving every instant the queue has stored, and damaging what it has stored."""

from __future__ import annotations

from typing import Any, Final

import redis

from jfast_sync.queues.redis.records import packed

_MOVE: Final = """
local by = tonumber(ARGV[1])
local function number(text) return string.format('%.0f', tonumber(text) - by) end
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'zset' then
    local found = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #found, 2 do redis.call('ZADD', key, tonumber(found[i + 1]) - by, found[i]) end
  end
end
local jobs, meta, kept, state = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local found = redis.call('HGETALL', jobs)
for i = 1, #found, 2 do
  local created, rest = string.match(found[i + 1], '^1 (%d+)( .*)$')
  if created then redis.call('HSET', jobs, found[i], '1 ' .. number(created) .. rest) end
end
found = redis.call('HGETALL', meta)
for i = 1, #found, 2 do
  local head, claimed, snoozed, told, due, rest =
    string.match(found[i + 1], '^(%S+ %d+ %d+) (%d+) (%d+) (%d) (%-?%d+)( .*)$')
  if claimed ~= '0' then claimed = number(claimed) end
  if snoozed ~= '0' then snoozed = number(snoozed) end
  redis.call('HSET', meta, found[i], table.concat({head, claimed, snoozed, told, number(due)}, ' ') .. rest)
end
found = redis.call('HGETALL', kept)
for i = 1, #found, 2 do
  local attempts, claimed, finished, rest = string.match(found[i + 1], '^(%d+) (%d+) (%d+)(\\n.*)$')
  redis.call('HSET', kept, found[i], table.concat({attempts, number(claimed), number(finished)}, ' ') .. rest)
end
for _, name in ipairs({'last', 'grace'}) do
  local value = redis.call('HGET', state, name)
  if value then redis.call('HSET', state, name, number(value)) end
end
"""


def move(url: str, seconds: float) -> None:
    """Move every stored instant `seconds` into the past."""
    with redis.Redis.from_url(url, protocol=2) as client:
        keys = [f"{{jfast:jobs}}:{part}" for part in ("jobs", "meta", "kept", "state")]
        client.eval(_MOVE, 4, *keys, str(round(seconds * 1_000_000)))


def replace_body(url: str, job_id: str, body: bytes) -> None:
    """Put `body` in the place of a stored job's, behind its header."""
    with redis.Redis.from_url(url, protocol=2) as client:
        stored: Any = client.hget("{jfast:jobs}:jobs", packed(job_id))
        header = stored.partition(b"\n")[0]
        client.hset("{jfast:jobs}:jobs", packed(job_id), header + b"\n" + body)
