"""Level-triggered reconciliation: one file per kind, all built on the same parts.

Read in this order: `scale_owners` (which client has set the replicas), `view` (the store read as resources),
`load_turns` (which backend's load is shown next), `context` (what every reconciler receives), `relist` (lists
that find what the watches missed), `parent_check` (whether a resource still exists), `status_writer`
(statuses and Events), `parent` (the resource of a key), `children` (applies and deletes what is rendered for
it), `victims` (the pods that go first), `release` (the next step of a split's release), then `backend`,
`shared` (the router that namespaces share), `router`, `endpoint`, `split`, `policy` (one `reconcile` each),
`scaling` (writes the autoscaler's recommendations), `watch_mapping` (which change concerns which keys) and
`manager` (queues and workers).

A reconciler reads only the store, computes everything desired, applies it by the rule of
`penstock_operator.apply`, prunes what is no longer desired and writes the status that follows from what it
observed. A second run writes nothing.
"""
