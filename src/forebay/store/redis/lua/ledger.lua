-- The ledger: what this call does to which jobs, as one entry, built as by `core.record_builder`. Neighbours with the same
-- change share a range, also if their kinds differ; a trait then has the kind.
--
--   an entry: at, verb, ranges, owner, name, tick;  a range: change, first, n, queue, kind, delivery, attempt, max_attempts,
--   enqueued, due, claimed, until, traits;  a trait: false, or what the job has of its own. The client makes records of them
-- needs: jobs

local MAINTENANCE = 'maintain'
local builder = { verb = MAINTENANCE, ranges = {} }
local set_verb, add_job, add_alike, add_held, add_leased, add_plain, trait_of, trait_of_error, read_rule, record_in,
  trim_ledger, write_ledger, next_record

(function()
  local range

  local RANGE_CHANGE, RANGE_FIRST, RANGE_SIZE, RANGE_QUEUE, RANGE_KIND = 1, 2, 3, 4, 5
  local RANGE_DELIVERY, RANGE_UNTIL, RANGE_TRAITS = 6, 12, 13

  local RECORD_AT = 1
  local RECORDS_PER_TRIM, TRIMMED_AT_ONCE, LOOKED_AT = 64, 256, 16

  -- Name the call. Without it the record is that of maintenance.
  function set_verb(verb, owner, name, tick)
    builder.verb, builder.owner, builder.name, builder.tick = verb, owner, name, tick
  end

  local function with_kind(kind, trait)
    local own = { kind = kind }
    for name, value in pairs(trait or NOTHING) do
      own[name] = value
    end
    return own
  end

  local function add_trait(trait)
    if trait and not range[RANGE_TRAITS] then
      range[RANGE_TRAITS] = {}
      for i = 1, range[RANGE_SIZE] do
        range[RANGE_TRAITS][i] = false
      end
    end
    if range[RANGE_TRAITS] then
      range[RANGE_TRAITS][range[RANGE_SIZE] + 1] = trait or false
    end
    range[RANGE_SIZE] = range[RANGE_SIZE] + 1
  end

  local function is_next(change, id, facts)
    if not range or range[RANGE_CHANGE] ~= change or range[RANGE_FIRST] + range[RANGE_SIZE] ~= id or range[RANGE_QUEUE] ~= facts[RANGE_QUEUE] then
      return false
    end
    for i = RANGE_DELIVERY, RANGE_UNTIL do
      if range[i] ~= facts[i] then
        return false
      end
    end
    return true
  end

  -- One job: `facts` is a range of one, and becomes the ledger's.
  function add_job(facts, trait)
    if not is_next(facts[RANGE_CHANGE], facts[RANGE_FIRST], facts) then
      facts[RANGE_TRAITS] = trait and { trait } or false
      range = facts
      builder.ranges[#builder.ranges + 1] = facts
    else
      add_trait(facts[RANGE_KIND] == range[RANGE_KIND] and trait or with_kind(facts[RANGE_KIND], trait))
    end
  end

  -- Many alike neighbours.
  function add_alike(facts, n, trait)
    add_job(facts, trait)
    if not trait and not range[RANGE_TRAITS] then
      range[RANGE_SIZE] = range[RANGE_SIZE] + n - 1
      return
    end
    for _ = 2, n do
      add_trait(facts[RANGE_KIND] == range[RANGE_KIND] and trait or with_kind(facts[RANGE_KIND], trait))
    end
  end

  -- Running neighbours with one record, from an id on; `till` is the instant of the change.
  function add_held(change, id, n, r, till, trait)
    local claimed = r[CLAIMED] or 0
    local facts = { change, id, 1, r[QUEUE], r[KIND], r[DELIVERY], r[ATTEMPT], 0, r[ENQUEUED], r[DUE], claimed, till }
    add_alike(facts, n, trait)
  end

  -- The same of many jobs with their records; those that share a record are added at once.
  function add_leased(change, sids, records, till)
    local first, n, r = 0, 0, nil
    for i = 1, #sids do
      local id = tonumber(sids[i])
      if records[i] == r and id == first + n then
        n = n + 1
      else
        if n > 0 then
          add_held(change, first, n, r, till)
        end
        first, n, r = id, 1, records[i]
      end
    end
    if n > 0 then
      add_held(change, first, n, r, till)
    end
  end

  function add_plain(change, sid, queue, r, till)
    add_job({ change, tonumber(sid), 1, queue, r[KIND], 0, 0, 0, 0, 0, 0, till or 0 })
  end

  function trait_of(m)
    if not (m.tenant or m.subject or m.key or m.priority) then
      return nil
    end
    return { tenant = m.tenant, subject = m.subject, key = m.key, priority = m.priority }
  end

  function trait_of_error(error)
    return { error_kind = error[ERROR_KIND], error = error[ERROR_MESSAGE] }
  end

  function read_rule()
    local fields = call('HMGET', P .. 'book', 'off', 'keep', 'keep_bytes', 'first', 'next', 'bytes')
    local off, keep, keep_bytes, first, following, bytes = unpack(fields)
    return {
      off = off == '1', keep = tonumber(keep or 604800000000), keep_bytes = tonumber(keep_bytes or 1073741824),
      first = tonumber(first or 0), next = tonumber(following or 0), bytes = tonumber(bytes or 0),
    }
  end

  -- A record is the only field of its entry.
  function record_in(entry)
    return entry[ENTRY_FIELDS][2]
  end

  -- Drop entries that the rule no longer keeps; how many.
  function trim_ledger(rule, limit)
    local first, going = rule.first, true
    while going and rule.first < rule.next and rule.first - first < limit do
      local left = min(LOOKED_AT, limit - (rule.first - first))
      for _, entry in ipairs(call('XRANGE', P .. 'ledger', text(rule.first + 1), '+', 'COUNT', left)) do
        local kept = record_in(entry)
        if decode(kept)[RECORD_AT] >= now - rule.keep and rule.bytes <= rule.keep_bytes then
          going = false
          break
        end
        rule.first, rule.bytes = rule.first + 1, rule.bytes - #kept
      end
    end
    if rule.first > first then
      call('XTRIM', P .. 'ledger', 'MINID', text(rule.first + 1))
      call('HSET', P .. 'book', 'first', rule.first, 'bytes', rule.bytes)
    end
    return rule.first - first
  end

  function write_ledger()
    if builder.verb == MAINTENANCE and #builder.ranges == 0 then
      return
    end
    local rule = read_rule()
    if rule.off and not builder.always then
      return
    end
    local kept = pack({ now, builder.verb, builder.ranges, builder.owner or false, builder.name or false, builder.tick or false })
    call('XADD', P .. 'ledger', text(rule.next + 1), 'r', kept)
    rule.next, rule.bytes = rule.next + 1, rule.bytes + #kept
    call('HSET', P .. 'book', 'next', rule.next, 'bytes', rule.bytes)
    if rule.next % RECORDS_PER_TRIM == 0 then
      trim_ledger(rule, TRIMMED_AT_ONCE)
    end
  end

  -- The rest of this script is another call.
  function next_record()
    write_ledger()
    builder, range = { verb = MAINTENANCE, ranges = {} }, nil
  end
end)()

-- verb: ledger (reads)
-- Entries of the ledger behind an offset: the first one that is held, the next one to come, offsets and entries.
local rule, after = read_rule(), tonumber(ARGV[3])
local reply = { rule.first, rule.next }
if after + 1 >= rule.first and after + 1 < rule.next then
  for _, entry in ipairs(call('XRANGE', P .. 'ledger', text(after + 2), '+', 'COUNT', ARGV[4])) do
    reply[#reply + 1] = record_in(entry)
  end
end
return reply

-- verb: ledger_rule (reads)
-- The rule of the ledger: whether it is off, keep, keep_bytes, its first and its next offset.
local rule = read_rule()
return { rule.off and 1 or 0, rule.keep, rule.keep_bytes, rule.first, rule.next }

-- verb: put_ledger_rule (needs maintain)
-- Put the rule of the ledger: off, keep, keep_bytes. The switch itself is recorded: the last record before a gap, and
-- the first one after it.
local off = ARGV[3] == '1'
if off ~= read_rule().off then
  set_verb('put_ledger_rule', nil, off and 'off' or 'on')
  builder.always = true
end
call('HSET', P .. 'book', 'off', ARGV[3], 'keep', ARGV[4], 'keep_bytes', ARGV[5])
write_all()
return 1

-- verb: trim_ledger (once)
-- Drop entries that the rule no longer keeps, so many at most; how many.
return trim_ledger(read_rule(), tonumber(ARGV[3]))
