-- Delivery by streams, a mode of the store: the ready jobs of a FIFO queue are in a stream with a consumer group, so
-- that XPENDING shows which consumer holds what. Records, leases and the fence decide as ever; the stream is an index of
-- them. What it returns is compared with the records; where they differ (a group or an entry was deleted or added by
-- another client) the stream is dissolved and its jobs are in the set.
--
-- An entry is added for the first delivery of a job. Its id is the due time and the id of the job, so that the stream
-- is in the order of places; a job whose place is before its end (a delayed one, a released one) is in the set
-- beside it, and a claim takes from both in order. The entry is pending from the first claim until the job has ended: at
-- its holder, or at UNHELD while it waits for the next claim, which is an XCLAIM. `flow` of a record is the due time in
-- the id of its entry; nil: it has none.
-- needs: jobs

local GROUP, UNHELD = 'workers', '(unheld)'
local CONSUMERS_KEPT = 600000000
local streams, entry_id, is_unread = {}, nil, nil

(function()
  function streams.key(q)
    return P .. 's:' .. q.name
  end

  -- The place of the job of an entry.
  function streams.place(entry)
    local due, job = string.match(entry[1], '^(%d+)-(%d+)$')
    return shifted(ZERO, tonumber(due)) .. sid_of(tonumber(job))
  end

  function entry_id(sid, flow)
    return format('%.0f-%.0f', flow, tonumber(sid))
  end

  -- Whether a job is in its stream and was never claimed.
  function is_unread(r)
    return r[DELIVERY] == 0 and r[MORE] and r[MORE].flow ~= nil
  end

  -- Whether a job that is ready now takes its place at the end of the stream.
  function streams.accepts(q, sid, r)
    if r[TIMED] ~= 2 or r[DELIVERY] > 0 or is_odd(r) or more(r).line or q.rule.whole or q.rule.terms or q.rule.default then
      return false
    end
    streams.mode = streams.mode or call('HGET', P .. 'head', 'delivery') or 'sets'
    return streams.mode == 'streams' and r[RANK] .. sid > (q.tail or '')
  end

  -- Alike jobs, in the order of their ids.
  function streams.add(q, sids, r)
    local key = streams.key(q)
    if not q.tail then
      redis.pcall('XGROUP', 'CREATE', key, GROUP, '0', 'MKSTREAM')
      call('ZADD', P .. 'streams', now + CONSUMERS_KEPT, q.name)
    end
    for i = 1, #sids do
      call('XADD', key, entry_id(sids[i], r[MORE].flow), 'kind', r[KIND])
    end
    q.tail = r[RANK] .. sids[#sids]
  end

  -- Remove entries of jobs that ended or left. A stream without entries is deleted, with its group.
  function streams.drop(q, ids)
    local key = streams.key(q)
    call('XACK', key, GROUP, unpack(ids))
    call('XDEL', key, unpack(ids))
    if call('XLEN', key) == 0 then
      call('DEL', key)
      call('ZREM', P .. 'streams', q.name)
      q.tail, q.changed = nil, true
    end
  end

  -- A job waits for its next claim, which also creates a lost group again.
  function streams.release(q, id)
    redis.pcall('XCLAIM', streams.key(q), GROUP, UNHELD, 0, id, 'JUSTID')
  end

  -- Entries that were never read, so many at most; `till`: before this one.
  function streams.unread(q, most, till)
    local after, groups = '-', redis.pcall('XINFO', 'GROUPS', streams.key(q))
    for _, group in ipairs(groups) do
      for i = 1, #group, 2 do
        if group[2] == GROUP and group[i] == 'last-delivered-id' then
          after = '(' .. group[i + 1]
        end
      end
    end
    return call('XRANGE', streams.key(q), after, till and '(' .. till or '+', 'COUNT', most)
  end

  -- The place of the first job of a lane, in its set or in the stream.
  function streams.head(q, key)
    local place = call('ZRANGE', P .. 'r:' .. q.name .. '|' .. key, 0, 0)[1]
    local entry = key == '' and q.streamed > 0 and streams.unread(q, 1)[1]
    local flowing = entry and streams.place(entry)
    return (not flowing or place and place < flowing) and place or flowing or nil
  end

  -- How many ready jobs of its lane go before a ready job; of a stream so many are counted at most.
  function streams.ahead(q, sid, r, most)
    local key, place = lane_of(r), r[RANK] .. sid
    local before = call('ZLEXCOUNT', P .. 'r:' .. q.name .. '|' .. key, '-', '(' .. place)
    for _, entry in ipairs(key == '' and q.streamed > 0 and streams.unread(q, most) or NOTHING) do
      before = before + (streams.place(entry) < place and 1 or 0)
    end
    return before
  end

  -- Delete consumers that hold nothing: every process that ever claimed is one.
  function streams.sweep(limit)
    for _, name in ipairs(call('ZRANGE', P .. 'streams', '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
      local key = P .. 's:' .. name
      for _, consumer in ipairs(redis.pcall('XINFO', 'CONSUMERS', key, GROUP)) do
        if consumer[4] == 0 then
          call('XGROUP', 'DELCONSUMER', key, GROUP, consumer[2])
        end
      end
      call('ZADD', P .. 'streams', now + CONSUMERS_KEPT, name)
    end
  end
end)()

local pop_ready, pop_ready_and_streamed, reclaim_entries

(function()
  local function parts_of(id)
    local due, job = string.match(id, '^(%d+)-(%d+)$')
    return tonumber(due), sid_of(tonumber(job))
  end

  local function drop_entry(sid, r)
    local is = edited(r)
    is[MORE].flow = nil
    if is_unread(r) then
      call('ZADD', P .. 'r:' .. r[QUEUE] .. '|', 0, r[RANK] .. sid)
    end
    call('HSET', P .. 'j:' .. sub(sid, 1, 14), sid, encoded(is))
  end

  -- All jobs of the queue leave its stream.
  local function dissolve(q)
    for _, bucket in ipairs(call('ZRANGE', P .. 'buckets', 0, -1)) do
      local all = call('HGETALL', P .. 'j:' .. bucket)
      for i = 1, #all, 2 do
        local r = record(all[i + 1])
        if r[QUEUE] == q.name and more(r).flow then
          drop_entry(all[i], r)
        end
      end
    end
    call('DEL', streams.key(q))
    call('ZREM', P .. 'streams', q.name)
    q.tail, q.streamed, q.changed = nil, 0, true
  end

  -- The first jobs of a queue without lanes that are in its set leave it.
  function pop_ready(q, most)
    local both, sids = call('ZPOPMIN', P .. 'r:' .. q.name .. '|', most), {}
    for i = 1, #both, 2 do
      sids[#sids + 1] = sub(both[i], 21)
    end
    return sids
  end

  -- Merge by place: for each job whether it is of the set, and how many are of the set and of the stream.
  local function merged(q, places, most)
    local entries, turns, i, k = streams.unread(q, most), {}, 1, 1
    while #turns < most and (places[i] or entries[k]) do
      local place = entries[k] and streams.place(entries[k])
      local by_set = not place or places[i] ~= nil and places[i] < place
      turns[#turns + 1] = by_set
      i, k = by_set and i + 1 or i, by_set and k or k + 1
    end
    return turns, i - 1, k - 1
  end

  -- Read so many entries for an owner: ids and records; nil: they differ from the records.
  local function read(q, most, owner)
    local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, owner, 'COUNT', most, 'STREAMS', streams.key(q), '>')
    local entries, dues, sids = reply and not reply.err and reply[1][2] or NOTHING, {}, {}
    if #entries ~= most then
      return nil
    end
    for i, entry in ipairs(entries) do
      dues[i], sids[i] = parts_of(entry[1])
    end
    local blobs = fetch(sids)
    for i = 1, most do
      local r = blobs[i] and record(blobs[i])
      if not r or not is_unread(r) or r[MORE].flow ~= dues[i] or r[QUEUE] ~= q.name then
        return nil
      end
    end
    return sids, blobs
  end

  -- The next jobs of the queue's one set are taken out of the set or the stream: ids, and records where it is all of the stream.
  function pop_ready_and_streamed(q, most, owner)
    local places, streamed = call('ZRANGE', P .. 'r:' .. q.name .. '|', 0, most - 1), min(most, q.streamed)
    if #places == 0 then
      local sids, blobs = read(q, streamed, owner)
      if sids then
        return sids, blobs
      end
      dissolve(q)
      return pop_ready(q, most)
    end
    local turns, of_set, of_stream = merged(q, places, most)
    local entries = of_stream > 0 and read(q, of_stream, owner) or NOTHING
    if #entries < of_stream or #turns < min(most, #places + streamed) then
      dissolve(q)
      return pop_ready(q, most)
    end
    local places_taken, sids, i, k = of_set > 0 and pop_ready(q, of_set) or NOTHING, {}, 0, 0
    for n, by_set in ipairs(turns) do
      i, k = by_set and i + 1 or i, by_set and k or k + 1
      sids[n] = by_set and places_taken[i] or entries[k]
    end
    return sids
  end

  -- Entries of jobs that were claimed before move to this owner. False: the stream is dissolved, and its jobs are in the set.
  function reclaim_entries(q, owner, ids)
    local taken = redis.pcall('XCLAIM', streams.key(q), GROUP, owner, 0, unpack(ids))
    if #taken < #ids then
      dissolve(q)
      return false
    end
    return true
  end
end)()
