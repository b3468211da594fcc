"""`kubectl penstock`: what Penstock does in a cluster, and why, on a terminal.

Read in this order: `cluster` (resources by a kubeconfig), `text` (tables, ages, bars), `causes` (what
conditions say, each cause once), `remedies` (what to do about them), `injected` (pods of others with a
sidecar), `release` (what a split says of its release), `asking` (the annotation by which somebody steers
it), `ui` (the page), `commands` (a module a command) and `__main__` (arguments in, exit code out). A
further command is one more module in `commands`.

It reads the four kinds, for an overview pods and Services too, and the Events of a release: whoever may see
them (the cluster's role `view`) may use it. It writes one annotation of a TrafficSplit, for which one may
patch that (`edit`).
"""
