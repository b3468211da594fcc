"""Access to Kubernetes: the client, who may write, and Events. It knows nothing of what is written.

Read in this order: `cluster` (the Protocol and the real client); `lease` (leader election with one Lease),
`installation` (which of several installations acts), `lease_thread` (both in a thread of their own), `fence`
(writes only while the Leases are held); `events` (Kubernetes Events, sent beside the work); `dry_cluster`
(keeps the writes of a dry run to itself).
"""
