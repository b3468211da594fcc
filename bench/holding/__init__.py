"""Holding a free slot, in simulated time: the sidecar's own cutter, without noise, with and without it.

Read `simulator` (one run), `cases` (all that is compared), `table` (what comes out), and `__main__`.
"""
