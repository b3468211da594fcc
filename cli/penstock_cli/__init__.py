"""`kubectl penstock`: what Penstock does in a cluster, and why, on a terminal.

Read in this order: `cluster` (reads resources by a kubeconfig), `text` (tables, ages, bars), `commands` (a
module a command) and `__main__` (arguments in, exit code out). A further command is one more module in
`commands`.

It reads the four kinds and nothing else: whoever may see them (the ClusterRole `penstock-view`) may use it.
"""
