-- Handing out by streams: the next places of a set and its stream in one order, and XCLAIM of what was handed out before.
-- What a stream gives is compared with the records. Where they differ (a group or an entry that somebody deleted, one
-- that is not ours) the records are right: the stream goes, and who stood in it stands in the set.

local popped, next_of_both, take_over

(function()
  local function parts_of(id)
    local due, job = string.match(id, '^(%d+)-(%d+)$')
    return tonumber(due), sid_of(tonumber(job))
  end

  local function forget_entry(sid, r)
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
          forget_entry(all[i], r)
        end
      end
    end
    call('DEL', streams.key(q))
    call('ZREM', P .. 'streams', q.name)
    q.tail, q.streamed, q.changed = nil, 0, true
  end

  -- The first jobs of a queue without lanes that are in its set leave it.
  function popped(q, most)
    local both, sids = call('ZPOPMIN', P .. 'r:' .. q.name .. '|', most), {}
    for i = 1, #both, 2 do
      sids[#sids + 1] = sub(both[i], 21)
    end
    return sids
  end

  -- Who goes first, by place: for each turn whether it is the set's, and how many of the set and of the stream.
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

  -- Hand out so many entries: ids and records; nil: they are not what those say.
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
  function next_of_both(q, most, owner)
    local places, streamed = call('ZRANGE', P .. 'r:' .. q.name .. '|', 0, most - 1), min(most, q.streamed)
    if #places == 0 then
      local sids, blobs = read(q, streamed, owner)
      if sids then
        return sids, blobs
      end
      dissolve(q)
      return popped(q, most)
    end
    local turns, of_set, of_stream = merged(q, places, most)
    local entries = of_stream > 0 and read(q, of_stream, owner) or NOTHING
    if #entries < of_stream or #turns < min(most, #places + streamed) then
      dissolve(q)
      return popped(q, most)
    end
    local places_taken, sids, i, k = of_set > 0 and popped(q, of_set) or NOTHING, {}, 0, 0
    for n, by_set in ipairs(turns) do
      i, k = by_set and i + 1 or i, by_set and k or k + 1
      sids[n] = by_set and places_taken[i] or entries[k]
    end
    return sids
  end

  -- Jobs that were handed out before are this owner's now. False: there is no stream any more, and who has just been read
  -- out of it stands in the set.
  function take_over(q, owner, ids)
    local taken = redis.pcall('XCLAIM', streams.key(q), GROUP, owner, 0, unpack(ids))
    if #taken < #ids then
      dissolve(q)
      return false
    end
    return true
  end
end)()
