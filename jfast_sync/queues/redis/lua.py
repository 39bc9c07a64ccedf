"""What the Lua texts have in common. Every transition of a job is one script, so it happens as a whole or not at all.

Rules they keep: the time is the server's; all keys come in KEYS; every key that will be written has been read before
the first write, because a WRONGTYPE halfway is not rolled back; the destination is written first and the source removed
last; what frees memory, or needs little, begins with a removal, because Redis then lets it run when memory is full.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

from jfast_sync.outcome import CANCELLED

__all__ = ["ANSWER", "RUN", "Script", "script"]

# KEYS: the fixed ones, a pair (ready, wake) for each lane, then an answer key where a script has one.
# ARGV: number of lanes, the version of the lanes the caller knows ('' where it does not matter), the lanes' names.
_PRELUDE: Final = """
local JOBS, META, ERRORS, LEASES, DEAD, DONE, KEPT, LANES, STATE, WAKE = unpack(KEYS, 1, 10)
local count = tonumber(ARGV[1])
local lanes, order = {}, {}
for i = 1, count do
  local name = ARGV[2 + i]
  local priority = string.match(name, '^(%-?%d+):')
  order[i] = {ready = KEYS[9 + 2 * i], wake = KEYS[10 + 2 * i], name = name, priority = priority}
  lanes[name] = order[i]
end
local A = 2 + count
local function outdated()
  return ARGV[2] ~= '' and (redis.call('HGET', LANES, 'version') or '0') ~= ARGV[2]
end
local clock
local function now()
  if not clock then
    local t = redis.call('TIME')
    clock = t[1] * 1000000 + t[2]
  end
  return clock
end
local function int(n) return string.format('%.0f', n) end
"""

_META: Final = """
local function parsed(text)
  local token, attempts, lapses, claimed, snoozed, told, due, worker =
    string.match(text or '', '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d) (%-?%d+) (.*)$')
  return {token = token or '-', attempts = tonumber(attempts or 0), lapses = tonumber(lapses or 0),
    claimed = tonumber(claimed or 0), snoozed = tonumber(snoozed or 0), told = tonumber(told or 0),
    due = tonumber(due or 0), worker = worker or ''}
end
local function written(m)
  return string.format('%s %.0f %.0f %.0f %.0f %d %.0f %s',
    m.token, m.attempts, m.lapses, m.claimed, m.snoozed, m.told, m.due, m.worker)
end
local function meta_of(id) return parsed(redis.call('HGET', META, id)) end
local function save(id, m) redis.call('HSET', META, id, written(m)) end
local function header(record)
  return string.match(record, '^1 (%d+) (%d+) ([^\\n]*)\\n')
end
-- Run a command on many arguments, a part at a time: Lua's unpack() has a limit.
local function bulk(command, key, values)
  for first = 1, #values, 1000 do
    redis.call(command, key, unpack(values, first, math.min(first + 999, #values)))
  end
end
local function bulk_get(key, ids)
  local found = {}
  for first = 1, #ids, 1000 do
    local part = redis.call('HMGET', key, unpack(ids, first, math.min(first + 999, #ids)))
    for i = 1, #part do found[first + i - 1] = part[i] end
  end
  return found
end
local function check_lanes()
  for i = 1, count do redis.call('ZCARD', order[i].ready); redis.call('LLEN', order[i].wake) end
end
local function check()
  redis.call('HLEN', JOBS); redis.call('HLEN', META); redis.call('HLEN', ERRORS)
  redis.call('ZCARD', LEASES); redis.call('ZCARD', DEAD)
  redis.call('LLEN', WAKE); redis.call('HLEN', LANES)
  check_lanes()
end
local function allow_when_full() redis.call('ZREM', LEASES, '') end
local TOKENS = 64
local function ring(key, wanted)
  local room = math.min(wanted, TOKENS - redis.call('LLEN', key))
  for _ = 1, room do redis.call('RPUSH', key, '1') end
end
local function register(name)
  if redis.call('HSETNX', LANES, name, '1') == 1 then
    redis.call('HINCRBY', LANES, 'version', 1)
    ring(WAKE, TOKENS)
  end
end
local placed = {}
local function put(lane, id, due)
  local place = placed[lane.name]
  if not place then
    register(lane.name)
    place = {lane = lane, soon = 0, scores = {}}
    placed[lane.name] = place
  end
  place.scores[#place.scores + 1] = due
  place.scores[#place.scores + 1] = id
  -- What is due later is found by the claimers' own looks, of which there is at least one a second.
  if due <= now() + 1000000 then place.soon = place.soon + 1 end
end
local function place_all()
  for _, place in pairs(placed) do bulk('ZADD', place.lane.ready, place.scores) end
end
local function ring_all()
  for _, place in pairs(placed) do
    if place.soon > 0 then ring(place.lane.wake, place.soon) end
  end
end
local unknown = false
local function lane_named(name)
  if not name or not string.match(name, '^%-?%d:.') then name = '0:default' end
  local lane = lanes[name]
  if not lane then
    -- Its key was not declared: have the caller come again with all lanes.
    register(name)
    unknown = true
  end
  return lane
end
-- The error of a running job that somebody had cancelled: it does not wait again.
local function cancelled(error)
  return 'CANCELLED' .. (error ~= '' and ': ' .. error or '')
end
local function forget(ids)
  bulk('HDEL', ERRORS, ids); bulk('HDEL', JOBS, ids); bulk('HDEL', META, ids)
end
""".replace("CANCELLED", CANCELLED)

ANSWER: Final = """
local ANSWER = KEYS[#KEYS]
local nonce, again = ARGV[A + 1], ARGV[A + 2] == '1'
if again then
  local before = redis.call('GET', ANSWER)
  if before and string.sub(before, 1, #nonce) == nonce then return string.sub(before, #nonce + 1) end
end
A = A + 2
local function answered(text, milliseconds)
  redis.call('SET', ANSWER, nonce .. text, 'PX', milliseconds)
  return text
end
"""


# Notes which run of the server this is, so that the holders of leases get a lease's time to come back after a restart
# or a failover. It counts from here: the server does not tell when it had loaded its data, or when it was promoted.
RUN: Final = """
local function note_run(visibility)
  local info = redis.pcall('INFO', 'server')
  local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)')
  local before = redis.call('HGET', STATE, 'run')
  if not run or before == run then return end
  allow_when_full()
  redis.call('HSET', STATE, 'run', run)
  if before then redis.call('HSET', STATE, 'grace', int(now() + visibility)) end
end
"""


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua text and the digest the server knows it by; run again after a lost reply where that is ``repeatable``."""

    name: str
    text: str
    repeatable: bool = True
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


def script(name: str, text: str, *, before: str = "", meta: bool = True, repeatable: bool = True) -> Script:
    return Script(name, _PRELUDE + (_META if meta else "") + before + text, repeatable)
