"""The autoscaler in simulated time, beside those of other projects.

Read `traces` (what arrives), `simulator` (pods that batch and refuse), `policies` (our recommender in it),
`peers` (the others), `compare` (both on one trace), `table` and `plots` (what comes out), and `__main__`.
"""
