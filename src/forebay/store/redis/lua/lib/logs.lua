-- Retained logs: a stream a partition, dense offsets, groups with a place, an owner and an epoch in each partition.
-- Whose partition is whose is decided as in `core.division`.

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
          ends[i] = min(ends[i] or MOST, position + 1)
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

  -- Checkpoints of sources that no longer move are forgotten.
  function sweep_sources(limit)
    local before = '(' .. text(now - SOURCE_KEPT)
    for _, source in ipairs(call('ZRANGE', P .. 'sources_at', '-inf', before, 'BYSCORE', 'LIMIT', 0, limit)) do
      call('HDEL', P .. 'sources', source)
      call('ZREM', P .. 'sources_at', source)
    end
  end
end)()
