"""Releases: how a candidate takes over from a stable backend, step by step, by evidence. Pure.

Read `state` (what goes in and what comes out), `steps` (what each step asks for), `capacity` (how much of the
requests the candidate's ready pods may get), `look` (what is seen at one look), `standing` (what a release
asks for and says where it stands), `machine` (the table of transitions) and `evidence` (sequential tests of
the candidate against the stable). `reconcile.release` feeds them and carries out what they say.
"""
