"""Takes a request to a pod and its answer back.

Read in this order: `request` (a request in progress), `retry` (what a failed try means), `error_log`, `proxy`
(requests that wait, stream or are tried again) and `forwarder` (all others, without a task).
"""
