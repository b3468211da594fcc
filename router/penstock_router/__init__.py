"""The endpoint data plane: one port per endpoint; requests are shared among backends and their pods.

Read in this order: `routes`, `load_balancing`, `match_rules`, `affinity` and `steering`, `static_answers`,
`endpoint_slices`, `header_policy` and `cors` (pure: the endpoint of a path, the backend and pod of a request,
choices by header, cookie or key, answers without a pod, pods from EndpointSlices, header fields in and out,
access by web pages), `pod`, `pods` and `hold_queue` (the state of pods and of waiting requests), `series`,
`compare` (a mirror's answer against the one that was served), `mirror_totals` and `metrics` (counters),
`pressure`, `large_answers`, `compare_queue`, `uncopied` and `mirrors` (copies of requests; no client gets
their answers), `arrived_head` (decisions shared by all requests with one head), `endpoints` (one endpoint's
state), `attempts` (a request in progress, and the outcome of a try), `error_log`, `forwarder` (requests in
and answers out, at once if possible), `request_body`, `response_body` and `proxy` (streams, waits, retries),
`tracing` (a span per request), `ports`, `api_server` and `watch` (sockets; EndpointSlices as they change),
`router` (the whole), `admin` and `admin_thread` (health,
from a separate thread), `__main__` (the process).
"""
