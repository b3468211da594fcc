"""The endpoint data plane: one port per endpoint; requests are shared among backends and their pods.

Read in this order; each imports only from those before it, as an import contract checks:

- `series`: counters of one endpoint's requests to one backend;
- `choice`: the endpoint of a path, and the backend and pod of a request (pure);
- `pods`: the pods of all backends, their state, and the watch that finds them;
- `messages`: what the router reads and writes in heads and bodies, and the answers that need no pod;
- `holding`: requests that wait for a pod, and how many are released at once;
- `mirroring`: copies of requests, whose answers no client gets;
- `metrics`, `ports`: the page of metrics; sockets as settings ask for them;
- `endpoints`: one endpoint's state;
- `forwarding`: a request to a pod and its answer back, at once if possible;
- `tracing`: a span per request;
- `router`: the whole for one namespace;
- `shared`: the routers of several namespaces in one process;
- `admin`: health and metrics, from a separate thread;
- `__main__`: the process.
"""
