"""The autoscaler in simulated time, beside those of other projects.

Read `traces` (what arrives), `simulator` (pods that batch and refuse), `policies` (our recommender in it, and
oracles), `peers` (the others), `compare` (all on one trace), `steady` (loads that do not change), `table` and
`plots` (what comes out), and `__main__`.
"""
