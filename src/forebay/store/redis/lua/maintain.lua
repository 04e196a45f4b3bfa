-- Maintenance: expire, promote, delete. It is bounded, and part of the verbs that change jobs.
-- A claim returns nothing while expired jobs are left (`maintain` returns whether all are dead), so none is ever claimed.
-- needs: openings lines ledger

local MAINTAIN_LIMIT, EXPIRE_LIMIT = 256, 4000
local OUT_OF_TIME = { 'forebay.Expired', 'not claimed before it expired', '' }
local GAVE_WAY = { 'forebay.Shed', 'it gave way to newer work in a full queue', '' }
local kept_until, dead_record, dead_letter, remove_all, expire, update_lanes, maintain, sweep_keys, write_all

(function()
  -- Until when a job that ends now is readable, by its queue or its verdict; nil: it is deleted at once.
  function kept_until(queue, keep_for)
    local keep = max(queue_of(queue).rule.keep or 0, keep_for or 0)
    return keep > 0 and now + keep or nil
  end

  -- The record of a job that dies: in the queue of its dead letters, for as long as these are kept.
  function dead_record(r, error, mark)
    local is = edited(r)
    local m = is[MORE]
    m.errors = failures(r, error)
    m.finished, m.behind, m.merges, m.mark = now, nil, nil, mark or m.mark
    is[STATE], is[OWNER], is[CLAIMED], is[UNTIL] = DEAD, false, false, false
    local rule = queue_of(r[QUEUE]).rule.dead
    if rule then
      local there = rule.queue and queue_of(rule.queue).rule.dead or not rule.queue and rule
      m.kept = there and there.keep and now + there.keep or nil
      if rule.queue then
        m.home, is[QUEUE] = r[QUEUE], rule.queue
      end
    end
    return is
  end

  -- A job that does not run dies of this error.
  function dead_letter(sid, r, error, change)
    move(sid, r, dead_record(r, error))
    add_plain(change, sid, r[QUEUE], r)
  end

  -- Remove a finished job; its last settle is kept.
  local function remove_job(sid, r, marks)
    move(sid, r, nil)
    add_plain('purged', sid, more(r).home or r[QUEUE], r)
    if more(r).mark then
      marks[#marks + 1] = sid
      marks[#marks + 1] = more(r).mark
    end
  end

  function remove_all(sids)
    local marks = {}
    for _, sid in ipairs(sids) do
      local r = fetch_one(sid)
      if r then
        remove_job(sid, r, marks)
      end
    end
    keep_marks(marks)
  end

  function expire(limit)
    while limit > 0 do
      local some = min(limit, BATCH)
      local late = call('ZRANGE', P .. 'expire', '-inf', now, 'BYSCORE', 'LIMIT', 0, some)
      for _, sid in ipairs(late) do
        dead_letter(sid, fetch_one(sid), OUT_OF_TIME, 'expired')
      end
      if #late < some then
        return true
      end
      limit = limit - some
    end
    return false
  end

  -- Expose the heads of lines, update the heads of lanes, wake lanes at gates with new room; how many jobs became ready.
  function update_lanes()
    local ready = expose_lines()
    refresh()
    wake_gates()
    return ready
  end

  local function promote_due(limit)
    local due = call('ZRANGE', P .. 'due', '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)
    for _, sid in ipairs(due) do
      local r = fetch_one(sid)
      local is = edited(r)
      is[STATE] = READY
      move(sid, r, is)
    end
    return #due
  end

  -- Remove the oldest dead jobs of queues that have more than they keep.
  local function drop_excess_dead(limit)
    local names = {}
    for _, name in ipairs(call('ZRANGE', P .. 'over_dead_limit', 0, -1)) do
      names[name] = true
    end
    for q in every(queues) do
      names[q.name] = names[q.name] or q.changed
    end
    for name in pairs(names) do
      local q = queue_of(name)
      local max_dead = q.rule.dead and q.rule.dead.limit
      local excess = max_dead and min(limit, q[DEAD] - max_dead) or 0
      if excess > 0 then
        limit = limit - excess
        remove_all(call('ZRANGE', P .. 'e:' .. DEAD .. '|' .. name, 0, excess - 1))
      end
    end
  end

  -- How many became ready, and whether everything that expired is dead; of these `expiring` at most die.
  function maintain(limit, expiring)
    local due, expires = first_score(P .. 'due'), first_score(P .. 'expire')
    local through = not expires or expires > now or expire(expiring or EXPIRE_LIMIT)
    local ready = due and due <= now and promote_due(limit) or 0
    local opens = first_score(P .. 'openings')
    if opens and opens <= now then
      tick(limit)
    end
    local kept = first_score(P .. 'kept')
    if kept and kept <= now then
      remove_all(call('ZRANGE', P .. 'kept', '-inf', now, 'BYSCORE', 'LIMIT', 0, limit))
    end
    drop_excess_dead(limit)
    return ready + update_lanes(), through
  end

  -- Delete keys whose window has passed.
  function sweep_keys(limit)
    for _, queue in ipairs(call('ZRANGE', P .. 'windows', '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
      local gone = call('ZRANGE', P .. 'ku:' .. queue, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)
      if #gone > 0 then
        call('HDEL', P .. 'k:' .. queue, unpack(gone))
        call('ZREM', P .. 'ku:' .. queue, unpack(gone))
      end
      local first = first_score(P .. 'ku:' .. queue)
      if first and first < MAX_INSTANT then
        call('ZADD', P .. 'windows', first, queue)
      else
        call('ZREM', P .. 'windows', queue)
      end
      limit = limit - #gone
      if limit < 1 then
        return
      end
    end
  end

  function write_all()
    update_lanes()
    write_gates()
    write_lanes()
    write_queues()
    write_ledger()
  end
end)()

-- verb: promote (needs logs)
-- Promote: so many at most. How many became ready, and when the next one is due, or an empty text.
local limit = tonumber(ARGV[3])
local ready = maintain(limit, limit)
sweep_keys(limit)
sweep_rates(limit)
trim_ledger(read_rule(), limit)
keep_windows(limit)
sweep_sources(limit)
streams.sweep(limit)
write_all()
local due, opens = first_score(P .. 'due'), first_score(P .. 'openings')
local soonest = min(due or MAX_INSTANT, opens or MAX_INSTANT)
return { ready, soonest < MAX_INSTANT and soonest or '' }
