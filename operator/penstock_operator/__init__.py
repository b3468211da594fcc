"""The control plane: custom resources in, Kubernetes objects, settings and replica counts out.

The core is pure: no Kubernetes client, no clock, no I/O. Read in this order: `api` (the resources), `desired`
(from resources to Kubernetes objects), `status` (from observations to conditions), `autoscaling` (from
reports to a recommendation), `releases` (from evidence to the next step).

Around it, from the bottom up: `errors`, `clock`, `kinds` (kinds of objects and their paths), `nesting`
(limits on the depth of JSON), `fair_turns` (tenants take turns), `kube` (access to Kubernetes: the client,
the Leases, Events), `injected` (what is read from pods of others that have a sidecar), `store` (the
objects that the watches have shown), `traffic_window` (requests that routers answered in the last minute),
`release_counts` (their counts of the backends that a release compares), `prometheus` (queries of releases),
`reports` (the latest reports of the pods), `apply` (writes of children), `workqueue`, `reconcile` (the
reconcilers and their manager), `control` (the server that takes reports), `leader_endpoint` (the Service that
finds the leader), `metrics` and `resource_metrics`,
`supervision` (loops that are restarted), `handlers` (the only module that imports kopf), `scheduling` and
`config` (the flags), `dry_run` (`--dry-run`), `validation`
(`penstock validate`), and `__main__`, which puts it all together.
"""
