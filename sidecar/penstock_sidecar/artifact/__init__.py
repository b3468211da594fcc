"""The first step of a pod whose model has an artifact: its files come from a bucket, a hub or a web server.

It runs in the sidecar's image, before the model, as `python -m penstock_sidecar.artifact`. Read `errors` and
`paths` (which files may be written), `identity` (why the pod's own credentials do not come), then `origins`
(what is where), `plan`, `neighbour` (another pod as an origin), `progress`, `download` (files come in
parallel pieces, and stay over a kill), `unpack` (archives), `store` (what the folder holds, and when it is
whole) and `__main__`. Of these, other parts of the sidecar import `paths` alone; only here is obstore needed.
"""
