"""The Lua texts beside a job's way: renewing, recovering, counting, dead letters, cancelling."""

from __future__ import annotations

from typing import Final

from jfast_sync.queues.redis.lua import RUN, script

__all__ = ["ADOPT", "CANCEL", "DISCARD", "EXTEND", "RECOVER", "REVIVE", "SETUP", "STATS"]

# Arguments: lease in microseconds, then id and token of each lease. Answers 0 lost, 1 renewed, 2 renewed and told.
EXTEND: Final = script(
    "extend",
    """
local visibility, ids, answers, leases = tonumber(ARGV[A + 1]), {}, {}, {}
for a = A + 2, #ARGV, 2 do ids[#ids + 1] = ARGV[a] end
for j, text in ipairs(bulk_get(META, ids)) do
  local m = parsed(text)
  if m.token ~= '-' and m.token == ARGV[A + 1 + 2 * j] then
    leases[#leases + 1] = now() + visibility
    leases[#leases + 1] = ids[j]
    answers[j] = 1 + m.told
  else
    answers[j] = 0
  end
end
allow_when_full()
bulk('ZADD', LEASES, leases)
return answers
""",
)

# Arguments: lease and keep_done in microseconds, how many at most, the error to note. Answers how many, and whether
# to come again with all lanes.
RECOVER: Final = script(
    "recover",
    """
local visibility, keep, limit = tonumber(ARGV[A + 1]), tonumber(ARGV[A + 2]), tonumber(ARGV[A + 3])
local t, found = now(), 0
note_run(visibility)
if keep > 0 then
  local old = redis.call('ZRANGEBYSCORE', DONE, '-inf', t - keep, 'LIMIT', 0, 1000)
  bulk('HDEL', KEPT, old)
  bulk('ZREM', DONE, old)
end
if count > 64 then
  -- Names of queues that come and go: what holds no job needs no look. An enqueue brings its lane back.
  for i = 1, count do
    if redis.call('ZCARD', order[i].ready) == 0 and redis.call('HDEL', LANES, order[i].name) == 1 then
      redis.call('DEL', order[i].wake)
      redis.call('HINCRBY', LANES, 'version', 1)
    end
  end
end
if t < tonumber(redis.call('HGET', STATE, 'grace') or '0') then return {0, 0} end
local lapsed = redis.call('ZRANGEBYSCORE', LEASES, '-inf', t, 'LIMIT', 0, limit)
if #lapsed == 0 then return {0, 0} end
check()
allow_when_full()
local gone, stale, changed, errors, buried = {}, {}, {}, {}, {}
for _, id in ipairs(lapsed) do
  local record = redis.call('HGET', JOBS, id)
  if not record then
    gone[#gone + 1], stale[#stale + 1] = id, id
  else
    local _, max, name = header(record)
    local lane = lane_named(name)
    if lane then
      local m = meta_of(id)
      local error, told = ARGV[A + 4] .. ' (' .. m.worker .. ')', m.told == 1
      errors[#errors + 1] = id
      errors[#errors + 1] = told and cancelled(error) or error
      m.token, m.told, m.lapses, m.worker = '-', 0, m.lapses + 1, ''
      m.attempts = math.max(math.min(m.attempts, tonumber(max or 1) - 1), 0)
      if told then
        buried[#buried + 1] = t
        buried[#buried + 1] = id
      else
        put(lane, id, m.due)
      end
      changed[#changed + 1] = id
      changed[#changed + 1] = written(m)
      gone[#gone + 1] = id
      found = found + 1
    end
  end
end
place_all()
bulk('ZADD', DEAD, buried)
bulk('HSET', ERRORS, errors)
bulk('HSET', META, changed)
bulk('HDEL', META, stale)
bulk('ZREM', LEASES, gone)
ring_all()
return {found, unknown and 1 or 0}
""",
    before=RUN,
    repeatable=False,
)

# Arguments: the format this library writes, lease in microseconds. Answers the format found.
SETUP: Final = script(
    "setup",
    """
check()
redis.call('ZCARD', DONE); redis.call('HLEN', KEPT); redis.call('HLEN', STATE)
allow_when_full()
redis.call('HSETNX', STATE, 'format', ARGV[A + 1])
note_run(tonumber(ARGV[A + 2]))
return redis.call('HGET', STATE, 'format')
""",
    before=RUN,
)

# Answers ready, delayed, running, dead and the age of the oldest ready job in microseconds, -1 where none waits.
STATS: Final = script(
    "stats",
    """
if outdated() then return 'LANES' end
local t, ready, waiting, oldest = now(), 0, 0, nil
for i = 1, count do
  local lane = order[i].ready
  local due = redis.call('ZCOUNT', lane, '-inf', t)
  ready, waiting = ready + due, waiting + redis.call('ZCARD', lane)
  if due > 0 then
    local first = tonumber(redis.call('ZRANGE', lane, 0, 0, 'WITHSCORES')[2])
    if not oldest or first < oldest then oldest = first end
  end
end
local age = oldest and math.max(t - oldest, 0) or -1
return {ready, waiting - ready, redis.call('ZCARD', LEASES), redis.call('ZCARD', DEAD), age}
""",
    meta=False,
)

# Arguments: the ids of dead letters. Answers those put back, then whether to come again with all lanes.
REVIVE: Final = script(
    "revive",
    """
check()
local t, revived = now(), {}
allow_when_full()
for a = A + 1, #ARGV do
  local id = ARGV[a]
  if redis.call('ZSCORE', DEAD, id) then
    local _, _, name = header(redis.call('HGET', JOBS, id) or '')
    local lane = lane_named(name)
    if lane then
      put(lane, id, t)
      revived[#revived + 1] = id
    end
  end
end
place_all()
bulk('HDEL', ERRORS, revived)
bulk('HDEL', META, revived)
bulk('ZREM', DEAD, revived)
ring_all()
revived[#revived + 1] = unknown and 1 or 0
return revived
""",
)

# Arguments: the ids of dead letters. Answers those removed.
DISCARD: Final = script(
    "discard",
    """
check()
local gone = {}
for a = A + 1, #ARGV do
  if redis.call('ZSCORE', DEAD, ARGV[a]) then gone[#gone + 1] = ARGV[a] end
end
forget(gone)
bulk('ZREM', DEAD, gone)
return gone
""",
)

# Arguments: id. The one lane is the job's. Answers removed, told, dead or unknown.
CANCEL: Final = script(
    "cancel",
    """
check()
local id = ARGV[A + 1]
if count == 1 and redis.call('ZSCORE', order[1].ready, id) then
  forget({id})
  redis.call('ZREM', order[1].ready, id)
  return 'removed'
end
if redis.call('ZSCORE', DEAD, id) then return 'dead' end
if not redis.call('ZSCORE', LEASES, id) then return 'unknown' end
local m = meta_of(id)
allow_when_full()
m.told = 1
save(id, m)
return 'told'
""",
)

# Arguments: id, token, error. Makes a leased entry that is not ours a dead letter under an id that can be typed.
ADOPT: Final = script(
    "adopt",
    """
check()
local id = ARGV[A + 1]
local m = meta_of(id)
if m.token ~= ARGV[A + 2] then return 0 end
local t, new = now(), redis.sha1hex(id)
allow_when_full()
redis.call('HSETNX', JOBS, new, redis.call('HGET', JOBS, id) or ('1 ' .. int(t) .. ' 1 0:default\\n' .. id))
m.token = '-'
save(new, m)
redis.call('HSET', ERRORS, new, ARGV[A + 3])
redis.call('ZADD', DEAD, t, new)
forget({id})
redis.call('ZREM', LEASES, id)
return 1
""",
)
