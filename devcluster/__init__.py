"""A real Kubernetes on one machine, for `make demo` and the tests: `python -m devcluster up`.

Read in this order: `paths` (where things lie), `programs` (what is built from the pinned Go modules),
`cluster` (the life of one cluster, and the API that tests use), `supervisor` (process 1 inside it),
`controlplane` and `node` (every flag and configuration file), `images` and `ocistore` (images without an
engine), `cli`. docs/devcluster.md describes how it works and its limits.
"""
