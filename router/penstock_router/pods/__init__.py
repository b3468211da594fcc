"""The pods of all backends.

Read in this order: `endpoint_slices` (pods from EndpointSlices), `pod` (one pod's load, room and
reachability), `pool` (all pods, and the choice among a backend's), `api_server` and `watch` (EndpointSlices
as they change).
"""
