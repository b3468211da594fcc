-- wrk's side of the ledger: each request carries its own number, each answer must hold a number that was sent
-- and is still unanswered. One thread, no pipelining. Arguments: path, kind (instances|v2), items a request,
-- `apart` where each request shall have a head of its own, else `alike`, and the mean time in ms that a
-- connection waits before each request.
local outstanding, number = {}, 0
local path, kind, items, apart, worker
-- NB: spelt as wrk itself does, or it would add a second Host.
local headers = { ["Content-Type"] = "application/json", ["Host"] = "bench" }

function setup(thread) worker = thread end

function init(args)
  path, kind, items, apart = args[1], args[2], tonumber(args[3]), args[4] == "apart"
  bad_count, good_count, unknown_count, bad_status = 0, 0, 0, 0
  local twice = math.floor(2 * tonumber(args[5]) + 0.5)
  -- NB: where there is such a function, wrk asks it before each request, which costs something.
  if twice > 0 then delay = function() return math.random(0, twice) end end
end

function request()
  number = number + 1
  local first = number * 1000
  outstanding[first] = true
  if apart then headers["X-Request-Id"] = "bench-" .. number end
  local list = tostring(first)
  if items > 1 then
    local all = {}
    for index = 0, items - 1 do all[index + 1] = first + index end
    list = table.concat(all, ",")
  end
  local body
  if kind == "v2" then
    body = '{"inputs":[{"name":"x","shape":[' .. items .. '],"datatype":"INT64","data":[' .. list .. ']}]}'
  else
    body = '{"instances":[' .. list .. ']}'
  end
  return wrk.format("POST", path, headers, body)
end

function response(status, _, body)
  if status ~= 200 then bad_count = bad_count + 1; bad_status = status; return end
  -- NB: the last bracketed list that begins with a number: v2 has its shape in brackets too.
  local first, rest = string.match(body, kind == "v2" and '"data": ?%[ ?(%d+)([^%]]*)%]' or '%[ ?(%d+)([^%]]*)%]')
  first = tonumber(first)
  local _, commas = string.gsub(rest or "", ",", "")
  if first and outstanding[first] and commas == items - 1 then
    outstanding[first] = nil
    good_count = good_count + 1
  else
    unknown_count = unknown_count + 1
  end
end

function done(summary, latency, _)
  local e = summary.errors
  io.write(string.format(
    '\nBENCH {"requests":%d,"seconds":%.6f,"good":%d,"not_200":%d,"last_status":%d,"mismatched":%d,"connect":%d,"read":%d,"write":%d,' ..
    '"timeout":%d,"p50_ms":%.4f,"p99_ms":%.4f,"max_ms":%.4f}\n',
    summary.requests, summary.duration / 1e6, worker:get("good_count"), worker:get("bad_count"),
    worker:get("bad_status"),
    worker:get("unknown_count"), e.connect, e.read, e.write, e.timeout,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000, latency.max / 1000))
end
