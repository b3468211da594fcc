"""Releases: a candidate takes over from a stable backend step by step, by evidence. Pure.

Read `state` (inputs and outputs), `stored` (a release as a status holds it), `steps` (the target of each
step), `capacity` (the share of the requests that the candidate's ready pods allow), `look` (one observation
of a release), `standing` (the weight, the reason and the message of a release) and `machine` (the table of
transitions). Then `evidence` (verdicts on the candidate), which rests on `sequential` (evidence over
intervals, valid at any look), `scatter` (requests that fail together), `margins` (the size of harm, and the
certainty of a verdict), `record` (the state that is kept from one interval to the next) and `trials` (against
the stable, and against a threshold).
`reconcile.release` gives them their inputs and carries out the result.
"""
