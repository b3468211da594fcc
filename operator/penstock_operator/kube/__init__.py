"""Access to Kubernetes: the client, the right to write, and Events. Independent of what is written.

Read in this order: `cluster` (the Protocol and the real client), `pages` (lists of bounded bytes); `lease`
(leader election with one Lease), `installation` (which of several installations acts), `lease_thread` (both
in a thread of their own), `fence` (writes only while the Leases are held); `events` (Kubernetes Events,
sent in the background); `dry_cluster` (records the writes of a dry run and sends none).
"""
