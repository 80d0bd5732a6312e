-- One exchange of a gateway with a store that speaks Redis's protocol. `redis_store` runs it, and documents its keys.
-- A script runs alone, so the decisions are exact. Its rule is that of `ledger_job.Ledgers.decide`.
--
-- KEYS[1] is the beginning of all keys. ARGV[1] is the job as JSON; amounts in it are texts, because Lua's numbers hold
-- only 53 bits. The result has the time, for each limit its window, for each ask the number of the limit that refuses it
-- (0: none) with what is used of each of its limits, and for each counter of the job what is known.
local prefix, job = KEYS[1], cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = tonumber(time[1])
local own = prefix .. ':held:' .. job.gateway

local function text(number)
  return string.format('%.0f', number)
end

local function name_of(scope, window)
  return text(window) .. ':' .. scope
end

local function add(scope, window, window_end, amount)
  local key = prefix .. ':spent:' .. name_of(scope, window)
  local sum = redis.pcall('INCRBY', key, amount)
  if type(sum) == 'table' or sum > tonumber(job.most) then
    redis.call('SET', key, job.most)
  end
  redis.call('EXPIREAT', key, text(window_end + job.kept_s))
  local part = string.match(scope, '^[^/]*')
  redis.call('SADD', prefix .. ':parts', part)
  redis.call('ZADD', prefix .. ':counters:' .. part, text(window_end), name_of(scope, window))
end

-- The costs of requests: a batch is applied once, however often it is sent.
local batch = prefix .. ':batch:' .. job.gateway
local last = redis.call('GET', batch)
local applies = not last or tonumber(last) < job.batch
redis.call('SET', batch, text(job.batch), 'EX', job.kept_s)
redis.call('ZADD', prefix .. ':gateways', time[1], job.gateway)
local touched, order = {}, {}
local function touch(scope, window)
  local name = name_of(scope, window)
  if not touched[name] then
    touched[name] = true
    order[#order + 1] = name
  end
end
if applies then
  for _, each in ipairs(job.spent) do
    add(each[1], each[2], each[3], each[4])
    touch(each[1], each[2])
  end
  for _, each in ipairs(job.usage) do
    local hour = prefix .. ':usage:' .. text(each[1])
    redis.call('ZADD', prefix .. ':hours', text(each[1]), text(each[1]))
    redis.call('HSET', hour, 'name:' .. each[2], each[3])
    for _, sum in ipairs(each[4]) do
      local field = sum[1] .. ':' .. each[2]
      local made = redis.pcall('HINCRBY', hour, field, sum[2])
      if type(made) == 'table' or made > tonumber(job.most) then
        redis.call('HSET', hour, field, job.most)
      end
    end
    redis.call('EXPIREAT', hour, text(each[1] + job.usage_kept_s))
  end
end

-- What is spent, reserved by other gateways, and reserved by this one, for the counters of the job.
local held = {}
for _, each in ipairs(job.held) do
  held[name_of(each[1], each[2])] = tonumber(each[3])
end
local windows, limits = {}, {}
for at, limit in ipairs(job.limits) do
  local window = limit[3] + math.floor((now - limit[3]) / limit[2]) * limit[2]
  windows[at] = text(window)
  limits[at] = {
    scope = limit[1], window = window, ends = window + limit[2], most = tonumber(limit[4]), counts_requests = limit[5] == 1,
    name = name_of(limit[1], window), requests = 0,
  }
  touch(limit[1], window)
end
local spent, elsewhere = {}, {}
for _, name in ipairs(order) do
  spent[name] = tonumber(redis.call('GET', prefix .. ':spent:' .. name) or '0')
  elsewhere[name] = 0
end
if #order > 0 then
  local alive = redis.call('ZRANGEBYSCORE', prefix .. ':gateways', '(' .. text(now - job.alive_s), '+inf')
  for _, gateway in ipairs(alive) do
    if gateway ~= job.gateway then
      for _, name in ipairs(order) do
        local amount = redis.call('HGET', prefix .. ':held:' .. gateway, name)
        elsewhere[name] = elsewhere[name] + tonumber(amount or '0')
      end
    end
  end
end

-- The decisions, in the order of the asks.
local function used(limit)
  return spent[limit.name] + elsewhere[limit.name] + (held[limit.name] or 0)
end
local function all_used(ask)
  local found = {}
  for at, each in ipairs(ask) do
    found[at] = text(used(limits[each[1]]))
  end
  return found
end
local outcomes = {}
for at, ask in ipairs(job.asks) do
  local refused = 0
  for number, each in ipairs(ask) do
    local limit = limits[each[1]]
    if refused == 0 and used(limit) + tonumber(each[2]) > limit.most then
      refused = number
    end
  end
  if refused == 0 then
    for _, each in ipairs(ask) do
      local limit, amount = limits[each[1]], tonumber(each[2])
      if limit.counts_requests then
        limit.requests = limit.requests + amount
        spent[limit.name] = spent[limit.name] + amount
      else
        held[limit.name] = (held[limit.name] or 0) + amount
      end
    end
  end
  outcomes[at] = {refused, all_used(ask)}
end
for _, limit in ipairs(limits) do
  if limit.requests > 0 then
    add(limit.scope, limit.window, limit.ends, text(limit.requests))
  end
end

-- The reservations of a gateway that writes no more disappear by themselves.
redis.call('DEL', own)
for name, amount in pairs(held) do
  if amount > 0 then
    redis.call('HSET', own, name, text(math.min(amount, tonumber(job.most))))
  end
end
redis.call('EXPIRE', own, job.alive_s)
local known = {}
for at, name in ipairs(order) do
  known[at] = {name, text(spent[name] + elsewhere[name])}
end
return {time[1], time[2], windows, outcomes, known}
