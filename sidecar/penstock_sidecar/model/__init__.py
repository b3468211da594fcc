"""The model container next to the sidecar.

Read in this order: `client` (sends requests, and checks whether the model is ready), `answers` (turns an
answer of the model, or its absence, into one for a client), `restart_detector` (is it the same process?),
`http2` (does it speak HTTP/2 alone?), `health` (its probe then), `reconfigure` (gives it its `userConfig`),
`warmup` (its first requests), `readiness` (both, before the pod is ready), `artifact_check` (whether its
files are there) and `artifact_port` (serves them to other pods).
"""
