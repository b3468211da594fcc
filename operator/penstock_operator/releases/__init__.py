"""Releases: how a candidate takes over from a stable backend, step by step, by evidence. Pure.

Read `state` (what goes in and what comes out), `machine` (the table of transitions), `capacity` (how much of
the requests the candidate's ready pods may get) and `evidence` (sequential tests of the candidate against
the stable). `reconcile.release` feeds them and carries out what they say.
"""
