-- Put the rule of the ledger: off, keep, keep_bytes. The switch itself is told: the last record before a silence, and
-- the first one after it.
local off = ARGV[3] == '1'
if off ~= read_rule().off then
  tell('put_ledger_rule', nil, off and 'off' or 'on')
  book.always = true
end
call('HSET', P .. 'book', 'off', ARGV[3], 'keep', ARGV[4], 'keep_bytes', ARGV[5])
finish()
return 1
