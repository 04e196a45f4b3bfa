-- Put a spec: name, the spec as text, what scripts know of it, the count of changes that the caller knows, partitions, and
-- the bucket after which jobs are not marked yet. `more` and a bucket: it is not put yet, and to be called again.
local BUCKETS_MARKED = 20
local name, body, rule, partitions = ARGV[3], ARGV[4], decode(ARGV[5]), tonumber(ARGV[7])
local q, changes = queue_of(name), tonumber(call('HGET', P .. 'head', 'specs') or 0)
local was = q.rule
if changes ~= tonumber(ARGV[6]) then
  return { 'stale' }
end
if q.version > 0 and (was.log and 1 or 0) ~= (rule.log and 1 or 0) then
  return { 'kind', was.log and 1 or 0 }
end
if rule.log and q.version == 0 and q[0] + q[1] + q[2] + q[3] + q[4] + q[5] > 0 then
  return { 'kind', 0 }
end
if rule.log and partitions < tonumber(call('HGET', P .. 'log:' .. name, 'partitions') or 0) then
  return { 'fewer' }
end

local function is_same(one, other)
  if type(one) ~= 'table' or type(other) ~= 'table' then
    return one == other
  end
  for field, value in pairs(one) do
    if not is_same(value, other[field]) then
      return false
    end
  end
  for field in pairs(other) do
    if one[field] == nil then
      return false
    end
  end
  return true
end

-- The queue is to shed: so are the jobs that it has. The bucket that was looked at last; nil: all were.
local function mark_some(after)
  local buckets = call('ZRANGE', P .. 'buckets', after == '' and '-' or '(' .. after, '+', 'BYLEX', 'LIMIT', 0, BUCKETS_MARKED)
  for _, bucket in ipairs(buckets) do
    local all = call('HGETALL', P .. 'j:' .. bucket)
    for i = 1, #all, 2 do
      local r = record(all[i + 1])
      if r[QUEUE] == name and not more(r).sheds then
        local is = edited(r)
        is[MORE].sheds = true
        move(all[i], r, is)
      end
    end
  end
  return #buckets == BUCKETS_MARKED and buckets[#buckets] or nil
end

if call('GET', P .. 'spec:' .. name) ~= body then
  local marked = rule.shed and not was.shed and mark_some(ARGV[8])
  if marked then
    q.sheds, q.changed = '1', true
    finish()
    return { 'more', marked }
  end
  q.version, q.sheds = call('HINCRBY', P .. 'head', 'specs', 1), nil
  call('HSET', P .. 'q:' .. name, 'version', q.version, 'rule', ARGV[5])
  call('SET', P .. 'spec:' .. name, body)
  call('ZREM', P .. 'crowded', name)
  if is_same({ was.whole or 0, was.terms or 0, was.weights or 0, was.default },
    { rule.whole or 0, rule.terms or 0, rule.weights or 0, rule.default }) then
    q.rule = rule
  else
    configure(q, rule)
  end
  tell('put_spec', nil, name)
end
if rule.log then
  call('HSET', P .. 'log:' .. name, 'partitions', partitions)
  call('ZADD', P .. 'logs', 0, name)
end
q.changed, eased[name] = true, true
finish()
return { 'ok' }
