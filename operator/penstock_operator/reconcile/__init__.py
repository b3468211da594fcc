"""Level-triggered reconciliation: one file a kind, all on the same pieces.

Read in this order: `scale_owners` (who has set the replicas), `view` (the store read as resources),
`load_turns` (whose load is shown next), `context` (what every reconciler is given), `relist` (lists that find
what the watches missed), `parent_check` (whether a resource is still there), `status_writer` (statuses and
Events), `parent` (the resource of a key), `children` (apply and delete what is rendered for it), `victims`
(the pods that go first), `release` (how a split's release goes on), then `backend`, `router`, `endpoint`,
`split`, `policy` (one `reconcile` each), `scaling` (writes the autoscaler's recommendations),
`watch_mapping` (which change concerns which keys) and `manager` (queues and workers).

A reconciler reads the store only, computes everything desired, applies it by the rule of
`penstock_operator.apply`, prunes what is no longer desired and writes the status that follows from what it
observed. A second run writes nothing.
"""
