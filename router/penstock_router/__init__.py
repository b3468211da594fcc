"""The endpoint data plane: one port an endpoint, requests shared among backends and their pods.

Read in this order: `routes`, `load_balancing`, `match_rules`, `affinity` and `steering`, `static_answers`,
`endpoint_slices`, `header_policy` and `cors` (pure: who serves a path, who gets the next request, and who
gets one for what it says itself, what is answered without a pod, what an EndpointSlice says, which header
fields cross, what web pages may read), `pod`, `pods` and `hold_queue` (what is known of pods and of
waiting requests), `series`, `compare` (a mirror's answer against the one that was served), `mirror_totals`
and `metrics` (what is counted), `pressure`, `large_answers`, `compare_queue`, `uncopied` and `mirrors`
(copies of requests, whose answers no client gets), `arrived_head` (what is decided once for all requests
with one head), `endpoints` (one endpoint's state), `attempts` (a request on its way, and what a try comes
to), `forwarder`
(requests in and answers out, at once where that can be), `request_body`, `response_body` and `proxy` (what
streams, waits or is tried again), `tracing` (a span for each), `ports`, `api_server` and `watch` (sockets;
EndpointSlices as they change), `memory_limit` (what connections may keep), `router` (all of it together),
`admin` and `admin_thread` (health, from a thread of its own), `__main__` (the process).
"""
