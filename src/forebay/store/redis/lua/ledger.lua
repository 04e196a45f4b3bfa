-- Entries of the ledger behind an offset: the first one that is held, the next one to come, offsets and entries.
local rule, after = read_rule(), tonumber(ARGV[3])
local reply = { rule.first, rule.next }
if after + 1 >= rule.first and after + 1 < rule.next then
  for _, entry in ipairs(call('XRANGE', P .. 'ledger', text(after + 2), '+', 'COUNT', ARGV[4])) do
    reply[#reply + 1] = entry[2][2]
  end
end
return reply
