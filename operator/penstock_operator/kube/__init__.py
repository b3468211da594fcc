"""Access to Kubernetes: the client, the right to write, and Events. Independent of what is written.

Read in this order: `cluster` (the Protocols and the real client), `pages` (lists of bounded bytes); `lease`
(leader election), `lease_thread` (the same in a thread of its own), `fence` (writes only while the Lease is
held); `events` (Kubernetes Events, sent in the background); `dry_cluster` (records the writes of a dry run
and sends none).
"""
