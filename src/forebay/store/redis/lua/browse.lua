-- Browse: the id to go on after, so many at most, so many to look at, and what must match: queue, state, kind, tenant,
-- subject, suspect. The id to go on after, or an empty text; and jobs in the order of their ids.
local after, limit, probes, query = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), decode(ARGV[6])
local found, records, last, full = {}, {}, nil, false

local function is_suspect(r)
  local errors = more(r).errors
  return errors ~= nil and errors[#errors][1] == 'forebay.Abandoned'
end

local function matches(r)
  local m = more(r)
  return (query.queue == nil or r[QUEUE] == query.queue)
    and (query.state == nil or r[STATE] == query.state)
    and (query.kind == nil or r[KIND] == query.kind)
    and (query.tenant == nil or m.tenant == query.tenant)
    and (query.subject == nil or m.subject == query.subject)
    and (query.suspect == nil or is_suspect(r) == query.suspect)
end

-- Whether the page goes on.
local function look_at(sid, blob)
  probes, last = probes - 1, sid
  if matches(record(blob)) then
    found[#found + 1], records[#records + 1] = sid, blob
  end
  full = #found == limit or probes == 0
  return not full
end

local function look_through(sids)
  local blobs = fetch(sids)
  for i, sid in ipairs(sids) do
    if blobs[i] and not look_at(sid, blobs[i]) then
      return
    end
  end
end

local function walk()
  local from = '[' .. sub(after, 1, 14)
  while true do
    local buckets = call('ZRANGE', P .. 'buckets', from, '+', 'BYLEX', 'LIMIT', 0, 16)
    for _, bucket in ipairs(buckets) do
      local sids = call('HKEYS', P .. 'j:' .. bucket)
      table.sort(sids)
      local blobs = fetch(sids)
      for i, sid in ipairs(sids) do
        if sid > after and not look_at(sid, blobs[i]) then
          return
        end
      end
      from = '(' .. bucket
    end
    if #buckets < 16 then
      return
    end
  end
end

local function any_after(sid)
  local newest = call('ZRANGE', P .. 'buckets', 0, 0, 'REV')[1]
  for _, each in ipairs(newest and call('HKEYS', P .. 'j:' .. newest) or NOTHING) do
    if each > sid then
      return true
    end
  end
  return false
end

if query.state == RUNNING and call('ZCARD', P .. 'lease') <= probes then
  local sids = {}
  for _, sid in ipairs(call('ZRANGE', P .. 'lease', 0, -1)) do
    if sid > after then
      sids[#sids + 1] = sid
    end
  end
  table.sort(sids)
  look_through(sids)
elseif query.state == DEAD then
  look_through(call('ZRANGE', P .. 'dead', '(' .. after, '+inf', 'BYSCORE', 'LIMIT', 0, probes))
else
  walk()
end
local reply = pictures(found, records, true)
table.insert(reply, 1, full and any_after(last) and last or '')
return reply
