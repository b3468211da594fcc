"""Releases: how a candidate takes over from a stable backend, step by step, by evidence. Pure.

Read `state` (what goes in and what comes out), `stored` (a release as a status holds it), `steps` (what each
step asks for), `capacity` (how much of the requests the candidate's ready pods may get), `look` (what is seen
at one look), `standing` (what a release asks for and says where it stands) and `machine` (the table of
transitions). Then `evidence` (verdicts on the candidate), which rests on `sequential` (evidence over
intervals, valid at any look), `scatter` (requests that fail together), `margins` (what counts as harm, and
how sure a verdict is), `record` (what goes on from one interval to the next) and `trials` (against the
stable, and against a threshold).
`reconcile.release` feeds them and carries out what they say.
"""
