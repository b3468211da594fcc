"""Level-triggered reconciliation: one file a kind, all on the same pieces.

Read in this order: `view` (the store read as resources), `context` (what every reconciler is given),
`writing` (statuses and Events), then `backend`, `router`, `endpoint`, `split`, `policy` (one `reconcile`
each), `scaling` (the autoscaler's hand), `triggers` (which change concerns whom) and `manager` (queues and
workers).

A reconciler reads the store only, computes everything desired, applies it by the rule of
`penstock_operator.apply`, prunes what is no longer desired and writes the status that follows from what it
observed. A second run writes nothing.
"""
