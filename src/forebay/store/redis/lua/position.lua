-- The last committed offset: log, group, number.
local parts, n = log_state(ARGV[3])
if not parts then
  return { 'kind' }
elseif not parts[tonumber(ARGV[5])] then
  return { 'partition', n }
end
return { 'ok', tonumber(call('HGET', group_key(ARGV[3], ARGV[4]), 'position:' .. ARGV[5]) or -1) }
