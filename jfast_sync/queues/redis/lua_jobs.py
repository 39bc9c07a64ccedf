"""The Lua texts a job passes on its way: enqueued, claimed, settled."""

from __future__ import annotations

from typing import Final

from jfast_sync.queues.redis.lua import ANSWER, script

__all__ = ["CLAIM", "ENQUEUE", "SETTLE"]

# Arguments: for each job id, lane, body, max_attempts, kind of due time (n: now, d: delay, a: absolute), its value in
# microseconds, attempts so far, error. Answers a digit per job: 1 stored, 0 was there.
ENQUEUE: Final = script(
    "enqueue",
    """
check()
local t = now()
local size = (#ARGV - A) / 8
local slot = math.max(tonumber(redis.call('HGET', STATE, 'last') or '0'), t - size)
local stored = {}
for j = 1, size do
  local a = A + (j - 1) * 8
  local id, lane, body, max = ARGV[a + 1], lanes[ARGV[a + 2]], ARGV[a + 3], ARGV[a + 4]
  local kind, value, attempts, error = ARGV[a + 5], tonumber(ARGV[a + 6]), tonumber(ARGV[a + 7]), ARGV[a + 8]
  local record = '1 ' .. int(t) .. ' ' .. max .. ' ' .. lane.name .. '\\n' .. body
  stored[j] = tostring(redis.call('HSETNX', JOBS, id, record))
  if stored[j] == '1' then
    local due = value
    if kind == 'd' then
      due = t + value
    elseif kind == 'n' then
      -- First come, first served, within one microsecond too; never after now, should the clock have gone back.
      slot = math.min(slot + 1, t)
      due = slot
    end
    if attempts > 0 then
      local m = meta_of(id)
      m.attempts = attempts
      save(id, m)
    end
    if error ~= '' then redis.call('HSET', ERRORS, id, error) end
    put(lane, id, due)
  end
end
redis.call('HSET', STATE, 'last', int(slot))
ring_all()
return answered(table.concat(stored), 60000)
""",
    before=ANSWER,
)

# Arguments: limit, lease in microseconds, the claim's id, worker, how many microseconds ago a claim with this id was
# sent whose reply was lost (0: none), whether the caller was woken by a token. Lanes come highest priority first.
# Answers now, microseconds until something is due (-1: nothing is known), then eight values for each lease.
CLAIM: Final = script(
    "claim",
    """
if outdated() then return 'LANES' end
local limit, visibility = tonumber(ARGV[A + 1]), tonumber(ARGV[A + 2])
local claim, worker, since, rung = ARGV[A + 3], ARGV[A + 4], tonumber(ARGV[A + 5]), ARGV[A + 6] == '1'
local out = {0, -1}
local function add(id, record, m)
  for _, value in ipairs({id, record, m.token, m.attempts, m.lapses, m.snoozed, m.due}) do out[#out + 1] = value end
  out[#out + 1] = redis.call('HGET', ERRORS, id)
end
if since > 0 then
  local found = 0
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', LEASES, now() + visibility - since, '+inf', 'LIMIT', 0, 10000)) do
    local m = meta_of(id)
    if string.sub(m.token, 1, #claim) == claim then
      local record = redis.call('HGET', JOBS, id)
      local _, _, name = header(record or '')
      local lane = lanes[name or '']
      found = found + 1
      if found <= limit or not lane then
        add(id, record, m)
      else
        m.attempts, m.token = math.max(m.attempts - 1, 0), '-'
        put(lane, id, m.due)
        save(id, m)
        redis.call('ZREM', LEASES, id)
      end
    end
  end
  ring_all()
  if found > 0 then
    out[1] = now()
    return out
  end
end
local picked, i, soonest = {}, 1, nil
while i <= count and #picked < limit do
  local priority, group = order[i].priority, {}
  local wanted = limit - #picked
  local sources = 0
  repeat
    local lane = order[i]
    local found = redis.call('ZRANGE', lane.ready, 0, wanted - 1, 'WITHSCORES')
    if #found > 0 then sources = sources + 1 end
    for j = 1, #found, 2 do
      local due = tonumber(found[j + 1])
      if due > now() then
        if not soonest or due < soonest then soonest = due end
        break
      end
      group[#group + 1] = {id = found[j], due = due, lane = lane, at = #group}
    end
    i = i + 1
  until i > count or order[i].priority ~= priority
  if sources > 1 then
    table.sort(group, function(a, b) return a.due < b.due or (a.due == b.due and a.at < b.at) end)
  end
  for j = 1, math.min(wanted, #group) do picked[#picked + 1] = group[j] end
end
if #picked == 0 then
  if rung then
    -- Tokens for jobs that others have taken: without them the next wait is a real one.
    local keys = {}
    for j = 1, count do keys[order[j].wake] = true end
    for key in pairs(keys) do redis.call('DEL', key) end
  end
  if soonest then out[2] = math.max(math.ceil(soonest - now()), 1) end
  return out
end
local t = now()
out[1] = t
redis.call('HLEN', META); redis.call('HLEN', ERRORS); redis.call('HLEN', JOBS)
allow_when_full()
for k, p in ipairs(picked) do
  local record = redis.call('HGET', JOBS, p.id)
  local m = meta_of(p.id)
  m.token, m.attempts, m.claimed, m.told, m.worker = claim .. '-' .. k, m.attempts + 1, t, 0, worker
  m.due = p.due
  if math.abs(p.due) > 9000000000000000 then m.due = t end
  redis.call('ZADD', LEASES, t + visibility, p.id)
  save(p.id, m)
  redis.call('ZREM', p.lane.ready, p.id)
  add(p.id, record, m)
end
return out
""",
)

# Arguments: how long to keep finished jobs in microseconds; for each settlement kind (D, R, B, L: done, retry, bury,
# release), id, token, lane, kind of due time, its value, flags (r: refund, s: snooze), error.
# Answers a digit per settlement: 1 applied, 0 refused.
SETTLE: Final = script(
    "settle",
    """
check()
redis.call('ZCARD', DONE); redis.call('HLEN', KEPT)
local keep = tonumber(ARGV[A + 1])
A = A + 1
local t = now()
local answers = {}
allow_when_full()
for j = 1, (#ARGV - A) / 8 do
  local a = A + (j - 1) * 8
  local kind, id, token, lane = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], lanes[ARGV[a + 4]]
  local m = meta_of(id)
  if m.token == '-' or m.token ~= token then
    answers[j] = '0'
  else
    answers[j] = '1'
    local error = ARGV[a + 8]
    m.token, m.told = '-', 0
    if kind == 'D' then
      if keep > 0 then
        local record = redis.call('HGET', JOBS, id)
        redis.call('HSET', KEPT, id, int(m.attempts) .. ' ' .. int(m.claimed) .. ' ' .. int(t) .. '\\n' .. record)
        redis.call('ZADD', DONE, t, id)
      end
      forget(id)
    elseif kind == 'B' then
      redis.call('ZADD', DEAD, t, id)
      redis.call('HSET', ERRORS, id, error)
      save(id, m)
    else
      local flags, due = ARGV[a + 7], m.due
      if kind == 'R' then
        due = tonumber(ARGV[a + 6])
        if ARGV[a + 5] == 'd' then due = t + due end
        m.due = due
        if string.find(flags, 's') and m.snoozed == 0 then m.snoozed = m.claimed end
        if error ~= '' then redis.call('HSET', ERRORS, id, error) end
      end
      if kind == 'L' or string.find(flags, 'r') then m.attempts = math.max(m.attempts - 1, 0) end
      put(lane, id, due)
      save(id, m)
    end
    redis.call('ZREM', LEASES, id)
  end
end
if keep > 0 then
  local old = redis.call('ZRANGEBYSCORE', DONE, '-inf', t - keep, 'LIMIT', 0, 1000)
  for _, id in ipairs(old) do redis.call('HDEL', KEPT, id); redis.call('ZREM', DONE, id) end
end
ring_all()
return answered(table.concat(answers), 600000)
""",
    before=ANSWER,
)
