"""The endpoint data plane: one port an endpoint, requests shared among backends and their pods.

Read in this order: `routes`, `choice`, `slices`, `edge` and `cors` (pure: who serves a path, who gets the
next request, what an EndpointSlice says, which header fields cross, what web pages may read), `pods` and
`holding` (what is known of pods and of waiting requests), `endpoints` (one endpoint's state), `proxy` (one
request), `ports` and `watch` (sockets and EndpointSlices as they change), `router` (all of it together),
`admin` and `beside` (health, from a thread of its own), `metrics`, `__main__` (the process).
"""
