"""The Lua texts a job passes on its way: enqueued, claimed, settled."""

from __future__ import annotations

from typing import Final

from jfast_sync.queues.redis.lua import ANSWER, script

__all__ = ["CLAIM", "ENQUEUE", "SETTLE"]

# Arguments: for each job id, body, error, and one text: lane, max_attempts, kind of due time (n: now, d: delay,
# a: absolute), its value in microseconds, attempts so far. Answers a digit per job: 1 stored, 0 was there.
ENQUEUE: Final = script(
    "enqueue",
    """
check_lanes()
local t = now()
local size = (#ARGV - A) / 4
local slot = math.max(tonumber(redis.call('HGET', STATE, 'last') or '0'), t - size)
local ids, stored, records, metas, errors = {}, {}, {}, {}, {}
for j = 1, size do ids[j] = ARGV[A + j * 4 - 3] end
local there, taken = bulk_get(JOBS, ids), {}
for j, id in ipairs(ids) do
  stored[j] = '0'
  if not there[j] and not taken[id] then
    local a = A + j * 4 - 3
    local max, kind, value, attempts, name = string.match(ARGV[a + 3], '^(%d+) (%a) (%-?%d+) (%d+) (.*)$')
    stored[j], taken[id] = '1', true
    records[#records + 1] = id
    records[#records + 1] = '1 ' .. int(t) .. ' ' .. max .. ' ' .. name .. '\\n' .. ARGV[a + 1]
    local due = tonumber(value)
    if kind == 'd' then
      due = t + due
    elseif kind == 'n' then
      -- First come, first served, within one microsecond too; never after now, should the clock have gone back.
      slot = math.min(slot + 1, t)
      due = slot
    end
    if attempts ~= '0' or ARGV[a + 2] ~= '' then
      local m = parsed(nil)
      m.attempts = tonumber(attempts)
      metas[#metas + 1] = id
      metas[#metas + 1] = written(m)
      if ARGV[a + 2] ~= '' then
        errors[#errors + 1] = id
        errors[#errors + 1] = ARGV[a + 2]
      end
    end
    put(lanes[name], id, due)
  end
end
if #metas > 0 then
  bulk('HSET', META, metas)
  bulk('HSET', ERRORS, errors)
end
if #records > 0 then
  bulk('HSET', JOBS, records)
  place_all()
  redis.call('HSET', STATE, 'last', int(slot))
  ring_all()
end
return answered(table.concat(stored), 60000)
""",
    before=ANSWER,
)

# Arguments: limit, lease in microseconds, the claim's id, worker, how many microseconds ago a claim with this id was
# sent whose reply was lost (0: none), whether the caller was woken by a token. Lanes come highest priority first.
# Answers now, microseconds until something is due (-1: nothing is known), then id, record, meta and error of each.
CLAIM: Final = script(
    "claim",
    """
if outdated() then return 'LANES' end
local limit, visibility = tonumber(ARGV[A + 1]), tonumber(ARGV[A + 2])
local claim, worker, since, rung = ARGV[A + 3], ARGV[A + 4], tonumber(ARGV[A + 5]), ARGV[A + 6] == '1'
local out = {0, -1}
if since > 0 then
  -- An earlier claim's reply was lost: it gets what that one took, and what is too much for it now goes back.
  allow_when_full()
  local found, back = {}, {}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', LEASES, now() + visibility - since, '+inf', 'LIMIT', 0, 10000)) do
    local text = redis.call('HGET', META, id)
    if text and string.sub(text, 1, #claim) == claim then
      found[#found + 1] = {id = id, text = text, place = tonumber(string.match(text, '^%w+%-(%d+)'))}
    end
  end
  table.sort(found, function(a, b) return a.place < b.place end)
  for number, one in ipairs(found) do
    local record = redis.call('HGET', JOBS, one.id)
    local _, _, name = header(record or '')
    local m = parsed(one.text)
    -- What was cancelled meanwhile must not wait again, so it is handed out too.
    if number <= limit or m.told == 1 or not lanes[name or ''] then
      for _, value in ipairs({one.id, record, one.text, redis.call('HGET', ERRORS, one.id)}) do
        out[#out + 1] = value
      end
    else
      m.attempts, m.token = math.max(m.attempts - 1, 0), '-'
      put(lanes[name], one.id, m.due)
      save(one.id, m)
      back[#back + 1] = one.id
    end
  end
  place_all()
  bulk('ZREM', LEASES, back)
  ring_all()
  if #found > 0 then
    out[1] = now()
    return out
  end
end
local picked, i, soonest = {}, 1, nil
while i <= count and #picked < limit do
  local priority, group = order[i].priority, {}
  local wanted, sources = limit - #picked, 0
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
    -- A waiter that blocks has had its own by now; what lies here is nobody's.
    local keys = {[WAKE] = true}
    for j = 1, count do keys[order[j].wake] = true end
    for key in pairs(keys) do redis.call('DEL', key) end
  end
  if soonest then out[2] = math.max(math.ceil(soonest - now()), 1) end
  return out
end
local t = now()
out[1] = t
local ids, leases, metas, taken = {}, {}, {}, {}
for k, p in ipairs(picked) do ids[k] = p.id end
local records, before = bulk_get(JOBS, ids), bulk_get(META, ids)
for k, p in ipairs(picked) do
  local id, m = p.id, parsed(before[k])
  m.token, m.attempts, m.claimed, m.told, m.worker = claim .. '-' .. k, m.attempts + 1, t, 0, worker
  m.due = p.due
  if math.abs(p.due) > 9000000000000000 then m.due = t end
  local text = written(m)
  leases[2 * k - 1], leases[2 * k] = t + visibility, id
  metas[2 * k - 1], metas[2 * k] = id, text
  local left = taken[p.lane.ready] or {}
  left[#left + 1] = id
  taken[p.lane.ready] = left
  local error = before[k] and redis.call('HGET', ERRORS, id) or false
  local at = 4 * k - 1
  out[at], out[at + 1], out[at + 2], out[at + 3] = id, records[k], text, error
end
allow_when_full()
bulk('ZADD', LEASES, leases)
bulk('HSET', META, metas)
for key, left in pairs(taken) do bulk('ZREM', key, left) end
return out
""",
)

# Arguments: how long to keep finished jobs in microseconds; for each settlement kind (D, R, B, L: done, retry, bury,
# release), id and token; after all but D lane, kind of due time, its value, flags (r: refund, s: snooze), error.
# Answers a digit per settlement: 1 applied, 0 refused.
SETTLE: Final = script(
    "settle",
    """
local keep = tonumber(ARGV[A + 1])
local asked, ids, a, plain = {}, {}, A + 2, true
while a <= #ARGV do
  asked[#asked + 1], ids[#ids + 1] = a, ARGV[a + 1]
  if ARGV[a] == 'D' then a = a + 3 else a, plain = a + 8, false end
end
if not plain then check() end
if keep > 0 then redis.call('ZCARD', DONE); redis.call('HLEN', KEPT) end
local t, texts = now(), bulk_get(META, ids)
allow_when_full()
local metas, answers, ended, buried, errors, changed, gone = {}, {}, {}, {}, {}, {}, {}
for j, id in ipairs(ids) do
  metas[id] = metas[id] or parsed(texts[j])
  local m, b = metas[id], asked[j]
  local kind = ARGV[b]
  if m.token == '-' or m.token ~= ARGV[b + 2] then
    answers[j] = '0'
  else
    answers[j] = '1'
    local told = m.told == 1
    m.token, m.told = '-', 0
    gone[#gone + 1] = id
    if kind == 'D' then
      ended[#ended + 1] = id
    else
      local lane, due, flags, error = lanes[ARGV[b + 3]], m.due, ARGV[b + 6], ARGV[b + 7]
      if told and kind ~= 'B' then
        error = cancelled(error ~= '' and error or redis.call('HGET', ERRORS, id) or '')
      end
      if error ~= '' then
        errors[#errors + 1] = id
        errors[#errors + 1] = error
      end
      if kind == 'L' or string.find(flags, 'r') then m.attempts = math.max(m.attempts - 1, 0) end
      if kind == 'B' or told then
        buried[#buried + 1] = t
        buried[#buried + 1] = id
      else
        if kind == 'R' then
          due = tonumber(ARGV[b + 5])
          if ARGV[b + 4] == 'd' then due = t + due end
          m.due = due
          if string.find(flags, 's') and m.snoozed == 0 then m.snoozed = m.claimed end
        end
        put(lane, id, due)
      end
      changed[#changed + 1] = id
      changed[#changed + 1] = written(m)
    end
  end
end
place_all()
bulk('ZADD', DEAD, buried)
bulk('HSET', ERRORS, errors)
bulk('HSET', META, changed)
if keep > 0 then
  for j, record in ipairs(bulk_get(JOBS, ended)) do
    local m = metas[ended[j]]
    local text = int(m.attempts) .. ' ' .. int(m.claimed) .. ' ' .. int(t) .. '\\n' .. (record or '')
    redis.call('HSET', KEPT, ended[j], text)
    redis.call('ZADD', DONE, t, ended[j])
  end
  local old = redis.call('ZRANGEBYSCORE', DONE, '-inf', t - keep, 'LIMIT', 0, 1000)
  bulk('HDEL', KEPT, old)
  bulk('ZREM', DONE, old)
end
forget(ended)
bulk('ZREM', LEASES, gone)
ring_all()
return answered(table.concat(answers), 600000)
""",
    before=ANSWER,
)
