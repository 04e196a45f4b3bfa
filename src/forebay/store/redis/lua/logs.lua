-- Retained logs: a stream a partition, dense offsets, groups with a place, an owner and an epoch in each partition.
-- Partitions are divided among members as in `core.division`.
-- needs: queues

local log_state, stream, appended, entry_at, first_since, group_key, drop_before, keep_windows, sweep_sources

(function()
  function log_state(name)
    local n = tonumber(call('HGET', P .. 'log:' .. name, 'partitions') or 0)
    local parts = {}
    if n == 0 then
      return nil
    end
    local all = call('HGETALL', P .. 'log:' .. name)
    for i = 0, n - 1 do
      parts[i] = { first = 0, next = 0, at = 0 }
    end
    for i = 1, #all, 2 do
      local field, number = string.match(all[i], '^(%a+):(%d+)$')
      if field then
        parts[tonumber(number)][field] = tonumber(all[i + 1])
      end
    end
    return parts, n
  end

  function stream(name, number)
    return P .. 'l:' .. name .. '|' .. text(number)
  end

  -- How much was ever appended to a log.
  function appended(name)
    local total, parts, n = 0, log_state(name)
    for i = 0, (n or 0) - 1 do
      total = total + parts[i].next
    end
    return total
  end

  function entry_at(name, number, offset)
    local id = text(offset + 1)
    local found = call('XRANGE', stream(name, number), id, id)[1]
    local fields = {}
    for i = 1, #found[2], 2 do
      fields[found[2][i]] = found[2][i + 1]
    end
    return tonumber(fields.a)
  end

  -- The first offset that was appended at an instant or later: offsets are dense and instants never fall.
  function first_since(name, number, part, instant)
    return lower_bound(part.first, part.next, function(offset) return entry_at(name, number, offset) < instant end)
  end

  function group_key(name, group)
    return P .. 'lg:' .. name .. '|' .. group
  end

  -- Entries of a partition before an offset are gone; groups that have not had them lose them.
  local function drop_entries(name, number, part, till)
    for _, group in ipairs(call('ZRANGE', P .. 'groups:' .. name, 0, -1)) do
      local key = group_key(name, group)
      local position = tonumber(call('HGET', key, 'position:' .. number) or -1)
      if position + 1 < till then
        call('HINCRBY', key, 'lost:' .. number, till - max(part.first, position + 1))
      end
    end
    call('XTRIM', stream(name, number), 'MINID', text(till + 1))
    call('HSET', P .. 'log:' .. name, 'first:' .. number, till)
    part.first = till
  end

  -- Entries appended before an instant, of a partition only up to its end if it has one; how many.
  function drop_before(name, instant, ends, limit)
    local left, parts, n = limit, log_state(name)
    for i = 0, n - 1 do
      local part = parts[i]
      if left > 0 and part.first < part.next then
        local till = min(first_since(name, i, part, instant), ends[i] or part.next, part.first + left)
        if till > part.first then
          left = left - (till - part.first)
          drop_entries(name, i, part, till)
        end
      end
    end
    return limit - left
  end

  -- By partition: the first offset that one of the groups that still read has not had.
  local function floors(name, n, since)
    local ends = {}
    for _, group in ipairs(call('ZRANGE', P .. 'groups:' .. name, 0, -1)) do
      local key = group_key(name, group)
      if tonumber(call('HGET', key, 'seen')) >= since then
        for i = 0, n - 1 do
          local position = tonumber(call('HGET', key, 'position:' .. i) or -1)
          ends[i] = min(ends[i] or MAX_INSTANT, position + 1)
        end
      end
    end
    return ends
  end

  -- Drop what left the windows of logs, but for what a group still reads towards, if it may.
  function keep_windows(limit)
    for _, name in ipairs(call('ZRANGE', P .. 'logs', 0, -1)) do
      local rule = queue_of(name).rule.log
      if limit > 0 and rule and rule.window then
        local _, n = log_state(name)
        local ends = rule.block and floors(name, n, now - rule.window) or NOTHING
        limit = limit - drop_before(name, now - rule.window + 1, ends, limit)
      end
    end
  end

  local SOURCE_KEPT = 90 * 86400 * 1000000

  -- Delete checkpoints of sources that no longer move.
  function sweep_sources(limit)
    local before = '(' .. text(now - SOURCE_KEPT)
    for _, source in ipairs(call('ZRANGE', P .. 'sources_at', '-inf', before, 'BYSCORE', 'LIMIT', 0, limit)) do
      call('HDEL', P .. 'sources', source)
      call('ZREM', P .. 'sources_at', source)
    end
  end
end)()

-- verb: append (grows, once)
-- Append: a log, then for each entry the number that its key gives or -1, the key or an empty text, and the body.
local name = ARGV[3]
local parts, n = log_state(name)
if not parts then
  return { 'kind' }, REFUSED
end
local reply, grown = { 'ok' }, {}
for i = 4, #ARGV, 3 do
  local number = tonumber(ARGV[i])
  if number >= 0 then
    number = number % n
  else
    number = 0
    for other = 1, n - 1 do
      number = parts[other].next < parts[number].next and other or number
    end
  end
  local part = parts[number]
  part.at = max(now, part.at)
  local fields = { 'a', part.at, 'b', ARGV[i + 2] }
  if ARGV[i + 1] ~= '' then
    fields[5], fields[6] = 'k', ARGV[i + 1]
  end
  call('XADD', stream(name, number), text(part.next + 1), unpack(fields))
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = number, part.next, part.at
  part.next = part.next + 1
  grown[number] = part
end
for number, part in pairs(grown) do
  call('HSET', P .. 'log:' .. name, 'next:' .. number, part.next, 'at:' .. number, part.at)
end
if next(grown) then
  has_work[name] = true
  publish('work', has_work)
end
return reply

-- verb: read (reads)
-- Read a partition: log, number, the offset to read after, so many at most. Its first and next offset, then entries.
local parts, n = log_state(ARGV[3])
local number, after = tonumber(ARGV[4]), tonumber(ARGV[5])
if not parts then
  return { 'kind' }
elseif not parts[number] then
  return { 'partition', n }
end
local part = parts[number]
local reply = { 'ok', part.first, part.next }
if after + 1 >= part.first and after + 1 < part.next then
  for i, entry in ipairs(call('XRANGE', stream(ARGV[3], number), text(after + 2), '+', 'COUNT', ARGV[6])) do
    reply[i + 3] = entry[2]
  end
end
return reply

-- verb: commit (once)
-- Commit: log, group, number, offset, whether it may go back, the epoch or an empty text. The place, or what is wrong.
local name, group, number, offset, epoch = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8])
local parts, n = log_state(name)
if not parts then
  return { 0, 'log' }, REFUSED
elseif not parts[number] then
  return { n - 1, 'partition' }, REFUSED
elseif offset < -1 or offset >= parts[number].next then
  return { parts[number].next - 1, 'offset' }, REFUSED
end
local key = group_key(name, group)
local f = call('HMGET', key, 'position:' .. number, 'member:' .. number, 'epoch:' .. number)
if epoch and (not f[2] or tonumber(f[3]) ~= epoch) then
  return { 0, 'lost' }, REFUSED
end
local position = ARGV[7] == '1' and offset or max(tonumber(f[1] or -1), offset)
call('ZADD', P .. 'groups:' .. name, 0, group)
call('HSET', key, 'position:' .. number, position, 'seen', now)
return { position, '' }

-- verb: position (reads)
-- The last committed offset: log, group, number.
local parts, n = log_state(ARGV[3])
if not parts then
  return { 'kind' }
elseif not parts[tonumber(ARGV[5])] then
  return { 'partition', n }
end
return { 'ok', tonumber(call('HGET', group_key(ARGV[3], ARGV[4]), 'position:' .. ARGV[5]) or -1) }

-- verb: extent (reads)
-- The extent of a log: first and next offset of each partition; nothing: it is none.
local parts, n = log_state(ARGV[3])
local reply = {}
for i = 0, (n or 0) - 1 do
  reply[i + 1] = { parts[i].first, parts[i].next }
end
return reply

-- verb: offset_at (reads)
-- The offset to read after for all since an instant: log, number, instant.
local parts, n = log_state(ARGV[3])
local number = tonumber(ARGV[4])
if not parts then
  return { 'kind' }
elseif not parts[number] then
  return { 'partition', n }
end
return { 'ok', first_since(ARGV[3], number, parts[number], tonumber(ARGV[5])) - 1 }

-- verb: trim (once)
-- Trim a log: entries before an instant, so many at most. How many; -1: it is none.
if not log_state(ARGV[3]) then
  return -1, REFUSED
end
return drop_before(ARGV[3], tonumber(ARGV[4]), NOTHING, tonumber(ARGV[5]))

-- verb: own
-- Own: log, group, member, length of the lease. Number, epoch and position of each partition, and the end of the lease.
local name, group, member, till = ARGV[3], ARGV[4], ARGV[5], now + tonumber(ARGV[6])
local parts, n = log_state(name)
if not parts then
  return { 'kind' }
end
local key, members = group_key(name, group), P .. 'lm:' .. name .. '|' .. group
call('ZADD', P .. 'groups:' .. name, 0, group)
call('HSET', key, 'seen', now)
call('ZADD', members, till, member)
local ends, all, living = {}, call('ZRANGE', members, 0, -1, 'WITHSCORES'), 0
for i = 1, #all, 2 do
  ends[all[i]] = tonumber(all[i + 1])
  living = living + (ends[all[i]] > now and 1 or 0)
end
local share, mine, owners = math.ceil(n / living), 0, {}
for i = 0, n - 1 do
  owners[i] = call('HGET', key, 'member:' .. i)
  if owners[i] == member then
    mine = mine + 1
    if mine > share then
      owners[i] = false
      call('HDEL', key, 'member:' .. i)
    end
  end
end
for i = 0, n - 1 do
  local owner = owners[i]
  local free = not owner or owner ~= member and (ends[owner] or 0) <= now
  if free and mine < share then
    owners[i], mine = member, mine + 1
    call('HSET', key, 'member:' .. i, member)
    call('HINCRBY', key, 'epoch:' .. i, 1)
  end
end
local reply, busy = { 'ok', till }, {}
for i = 0, n - 1 do
  busy[owners[i] or ''] = true
  if owners[i] == member then
    local f = call('HMGET', key, 'epoch:' .. i, 'position:' .. i)
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = i, tonumber(f[1]), tonumber(f[2] or -1)
  end
end
for other, ended in pairs(ends) do
  if ended <= now and not busy[other] then
    call('ZREM', members, other)
  end
end
return reply

-- verb: disown (once)
-- Disown: log, group, member. How many partitions are free now; -1: there is no such log.
local _, n = log_state(ARGV[3])
if not n then
  return -1, REFUSED
end
local key, freed = group_key(ARGV[3], ARGV[4]), 0
for i = 0, n - 1 do
  if call('HGET', key, 'member:' .. i) == ARGV[5] then
    call('HDEL', key, 'member:' .. i)
    freed = freed + 1
  end
end
call('ZREM', P .. 'lm:' .. ARGV[3] .. '|' .. ARGV[4], ARGV[5])
return freed

-- verb: groups (reads)
-- Groups and their lag: log, the name to go on after, so many at most. For each partition of each: group, number, position,
-- lag, lost, when it loses the first it has not had, when it was seen, member, epoch, until; empty texts for none.
local name = ARGV[3]
local parts, n = log_state(name)
if not parts then
  return { 'kind' }
end
local window, reply = queue_of(name).rule.log.window, { 'ok' }
local from = ARGV[4] == '' and '-' or '(' .. ARGV[4]
for _, group in ipairs(call('ZRANGE', P .. 'groups:' .. name, from, '+', 'BYLEX', 'LIMIT', 0, ARGV[5])) do
  local key = group_key(name, group)
  for i = 0, n - 1 do
    local part = parts[i]
    local f = call('HMGET', key, 'position:' .. i, 'lost:' .. i, 'seen', 'member:' .. i, 'epoch:' .. i)
    local position = tonumber(f[1] or -1)
    local following = max(part.first, position + 1)
    local loses = window and following < part.next and entry_at(name, i, following) + window or ''
    local till = f[4] and tonumber(call('ZSCORE', P .. 'lm:' .. name .. '|' .. group, f[4])) or ''
    reply[#reply + 1] = {
      group, i, position, part.next - following, tonumber(f[2] or 0), loses, tonumber(f[3]), f[4] or '',
      tonumber(f[5] or 0), till,
    }
  end
end
return reply
