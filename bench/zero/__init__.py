"""`python -m bench.zero`: cycles from no pod to some and back on a cluster, with a burst of requests in each.

Read in this order: `resources` (backends and endpoints), `model` (what runs in the pods), `cycles` (bursts,
and what a watch and the model saw of each), `table` (the figures and their bounds), `__main__` (the cluster
and the results).
"""
