-- The ledger: what this call does to which jobs, as one entry. Neighbours to whom the same happens share a span; those
-- that differ in kind alone as well, and then say theirs in a trait.
--
--   an entry: at, verb, spans, owner, name, tick;  a span: change, first, n, queue, kind, delivery, attempt, lives,
--   born, due, claimed, until, traits;  a trait: false, or what the job has of its own. The client makes records of them

local TEND = 'tend'
local book = { verb = TEND, spans = {} }
local tell, told, told_alike, told_held, told_runs, told_plain, trait_of, trait_of_error, read_rule, trim_ledger,
  write_ledger, next_record

(function()
  local span

  local RECORDS_PER_TRIM, TRIMMED_AT_ONCE, LOOKED_AT = 64, 256, 16

  -- The call has changed something of its own, which no tending would have.
  function tell(verb, owner, name, tick)
    book.verb, book.owner, book.name, book.tick = verb, owner, name, tick
  end

  local function with_kind(kind, trait)
    local own = { kind = kind }
    for name, value in pairs(trait or NOTHING) do
      own[name] = value
    end
    return own
  end

  local function add_trait(trait)
    if trait and not span[13] then
      span[13] = {}
      for i = 1, span[3] do
        span[13][i] = false
      end
    end
    if span[13] then
      span[13][span[3] + 1] = trait or false
    end
    span[3] = span[3] + 1
  end

  local function is_next(change, id, facts)
    if not span or span[1] ~= change or span[2] + span[3] ~= id or span[4] ~= facts[4] then
      return false
    end
    for i = 6, 12 do
      if span[i] ~= facts[i] then
        return false
      end
    end
    return true
  end

  -- What became of one job: `facts` is a span of one, of which the ledger keeps the table.
  function told(facts, trait)
    if not is_next(facts[1], facts[2], facts) then
      facts[13] = trait and { trait } or false
      span = facts
      book.spans[#book.spans + 1] = facts
    else
      add_trait(facts[5] == span[5] and trait or with_kind(facts[5], trait))
    end
  end

  -- The same of many neighbours that are alike.
  function told_alike(facts, n, trait)
    told(facts, trait)
    if not trait and not span[13] then
      span[3] = span[3] + n - 1
      return
    end
    for _ = 2, n do
      add_trait(facts[5] == span[5] and trait or with_kind(facts[5], trait))
    end
  end

  -- The same of neighbours that a lease says all of, from an id on; `till` is what the change says.
  function told_held(change, id, n, r, till, trait)
    local claimed = r[CLAIMED] or 0
    local facts = { change, id, 1, r[QUEUE], r[KIND], r[DELIVERY], r[ATTEMPT], 0, r[BORN], r[DUE], claimed, till }
    told_alike(facts, n, trait)
  end

  -- The same of many jobs with their records; those that have the same one are told at once.
  function told_runs(change, sids, records, till)
    local first, n, r = 0, 0, nil
    for i = 1, #sids do
      local id = tonumber(sids[i])
      if records[i] == r and id == first + n then
        n = n + 1
      else
        if n > 0 then
          told_held(change, first, n, r, till)
        end
        first, n, r = id, 1, records[i]
      end
    end
    if n > 0 then
      told_held(change, first, n, r, till)
    end
  end

  function told_plain(change, sid, queue, r, till)
    told({ change, tonumber(sid), 1, queue, r[KIND], 0, 0, 0, 0, 0, 0, till or 0 })
  end

  function trait_of(m)
    if not (m.tenant or m.subject or m.key or m.priority) then
      return nil
    end
    return { tenant = m.tenant, subject = m.subject, key = m.key, priority = m.priority }
  end

  function trait_of_error(error)
    return { error_kind = error[1], error = error[2] }
  end

  function read_rule()
    local f = call('HMGET', P .. 'book', 'off', 'keep', 'keep_bytes', 'first', 'next', 'bytes')
    return {
      off = f[1] == '1', keep = tonumber(f[2] or 604800000000), keep_bytes = tonumber(f[3] or 1073741824),
      first = tonumber(f[4] or 0), next = tonumber(f[5] or 0), bytes = tonumber(f[6] or 0),
    }
  end

  -- Give up what the rule no longer keeps at the front; how many entries.
  function trim_ledger(rule, limit)
    local first, going = rule.first, true
    while going and rule.first < rule.next and rule.first - first < limit do
      local left = min(LOOKED_AT, limit - (rule.first - first))
      for _, entry in ipairs(call('XRANGE', P .. 'ledger', text(rule.first + 1), '+', 'COUNT', left)) do
        local kept = entry[2][2]
        if decode(kept)[1] >= now - rule.keep and rule.bytes <= rule.keep_bytes then
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
    if book.verb == TEND and #book.spans == 0 then
      return
    end
    local rule = read_rule()
    if rule.off and not book.always then
      return
    end
    local kept = pack({ now, book.verb, book.spans, book.owner or false, book.name or false, book.tick or false })
    call('XADD', P .. 'ledger', text(rule.next + 1), 'r', kept)
    rule.next, rule.bytes = rule.next + 1, rule.bytes + #kept
    call('HSET', P .. 'book', 'next', rule.next, 'bytes', rule.bytes)
    if rule.next % RECORDS_PER_TRIM == 0 then
      trim_ledger(rule, TRIMMED_AT_ONCE)
    end
  end

  -- What comes now is another call's, in the same script.
  function next_record()
    write_ledger()
    book, span = { verb = TEND, spans = {} }, nil
  end
end)()
