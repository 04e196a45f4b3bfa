-- Read a partition: log, number, the offset to read after, so many at most. Its first and next offset, then entries.
local parts, n = log_state(ARGV[3])
local number, after = tonumber(ARGV[4]), tonumber(ARGV[5])
if not parts then
  return { 'kind' }
elseif not parts[number] then
  return { 'partition', n }
end
local part = parts[number]
local reply = { 'ok', part.first, part.next }
if after + 1 >= part.first and after + 1 < part.next then
  for i, entry in ipairs(call('XRANGE', stream(ARGV[3], number), text(after + 2), '+', 'COUNT', ARGV[6])) do
    reply[i + 3] = entry[2]
  end
end
return reply
