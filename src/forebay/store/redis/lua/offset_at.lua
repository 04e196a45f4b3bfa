-- The offset to read after for all since an instant: log, number, instant.
local parts, n = log_state(ARGV[3])
local number = tonumber(ARGV[4])
if not parts then
  return { 'kind' }
elseif not parts[number] then
  return { 'partition', n }
end
return { 'ok', first_since(ARGV[3], number, parts[number], tonumber(ARGV[5])) - 1 }
