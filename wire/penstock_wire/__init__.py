"""All that crosses a process boundary of Penstock: documents, headers, errors, HTTP server and client.

Read in this order: `contract` (ports, names, paths and environment variables), `errors` and `headers` (the
reasons and field names), `http` (the two Protocols that every data plane uses, implemented by `http.server`
and `http.client`), `framing` (connections of many requests), `hop` (one between router and sidecar),
`http2` (HTTP/2 and gRPC), `control` (settings down, reports up), `json_slices` (JSON cut into bytes),
`instances_form` (a request that sidecar and SDK both read), `item_problem` (the answer where only some
items have one) and `item_streams` (streams of single items), `method_names` (the method that a request
calls), `call_chain` (the calls that a request is part of). Then modules for every process: `process` (the
command line), `addresses`, `durations`, `quantities` (numbers of bytes), `timers` and `exact_timer`,
`request_ids`, `access_log`, `closed_paths` (paths closed to requests from outside), `extras` (the extra
that a command needs), `version`, `memory_limit` (what connections keep), `exposition` (pages of metrics),
`page` (what a browser shows of them), `words` (texts cut where a word ends), `yaml_text` (YAML that users
write), `tracing` (OpenTelemetry), `unpack` (a pod's first step, which unpacks code: importing the SDK would
take it six times as long), `build` and `_mypyc` (compiled modules).
"""
