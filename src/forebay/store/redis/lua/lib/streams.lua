-- Delivery by streams, a mode of the store: the ready jobs of a FIFO queue stand in a stream with a consumer group, so
-- that whoever knows streams sees by XPENDING who holds what. Records, leases and the fence decide as ever; the stream
-- is an index of them, which readers.lua makes anew out of the records if somebody has spoilt it.
--
-- An entry is added for the first delivery of a job. Its id is the due time and the id of the job, so that the stream
-- is in the order of places; who would have to stand before its end (a delayed job, a released one) stands in the set
-- beside it, and a claim takes from both in order. The entry is pending from the first claim until the job has ended: at
-- its holder, or at NOBODY while it waits to be handed out again, which XCLAIM does. `flow` of a record is the due time in
-- the id of its entry; nil: it has none.

local GROUP, NOBODY = 'workers', '(nobody)'
local CONSUMERS_KEPT = 600000000
local streams, entry_id, is_unread = {}, nil, nil

(function()
  function streams.key(q)
    return P .. 's:' .. q.name
  end

  -- The place of the job that an entry stands for.
  function streams.place(entry)
    local due, job = string.match(entry[1], '^(%d+)-(%d+)$')
    return shifted(ZERO, tonumber(due)) .. sid_of(tonumber(job))
  end

  function entry_id(sid, flow)
    return format('%.0f-%.0f', flow, tonumber(sid))
  end

  -- Whether a record stands in its stream and was never handed out.
  function is_unread(r)
    return r[DELIVERY] == 0 and r[MORE] and r[MORE].flow ~= nil
  end

  -- Whether a job that is ready now takes its place at the end of the stream.
  function streams.takes(q, sid, r)
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

  -- Jobs have ended, or leave before they were handed out. A stream without entries goes, with its group.
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

  -- A job waits to be handed out again. A group that is lost is made anew by the next claim.
  function streams.hand_back(q, id)
    redis.pcall('XCLAIM', streams.key(q), GROUP, NOBODY, 0, id, 'JUSTID')
  end

  -- Entries that were never handed out, so many at most; `till`: before this one.
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

  -- Consumers that hold nothing are forgotten: every process that ever claimed is one.
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
