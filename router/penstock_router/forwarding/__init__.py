"""Takes a request to a pod and its answer back.

Read in this order: `retry` (what follows a try that was not executed; pure), `request` (a request in
progress), `outcome` (what a try's answer or error means), `counting` and `error_log`, `proxy` (requests that
wait, stream or are tried again) and `forwarder` (all others, without a task).
"""
