"""What counts as harm, and how sure a verdict is: constants, with their reasons."""

from __future__ import annotations

import math

ALPHA = 1 / 200
"""Of healthy candidates, the share that fails, whatever the number of metrics and looks: at most."""
MOST_TESTS = 16
"""Tests in a release at most: eight metrics, each held against the stable and against a threshold."""
FAIL = -math.log(ALPHA / MOST_TESTS)
"""Logarithm of the evidence at which a candidate fails: 3200 to 1."""
FAIL_CAP = FAIL + 3.0
"""More than that is not kept: where onFailure is Pause, a mended candidate is soon seen to be mended."""
PASS = math.log(20)
"""Logarithm of the evidence at which it passes: of candidates beyond the margin at most 1 in 20 passes a
metric. A wrong pass costs less than a wrong failure: the next intervals go on judging."""
PASS_CAP = PASS + 3.0
"""More than that is not kept: a candidate that goes bad in a later step loses its pass in that interval."""

ERRORS = 0.01
"""Of the requests that the stable answers well, the candidate may fail so many more. Below it no retry budget
is noticed; it needs about 600 requests to be shown. Against a stable that itself fails, it is no looser: a
ratio such as "twice the stable's" would let a candidate fail 9 % beside a stable's 5 %."""
SLOWER = 1.25
"""The candidate may take so many times as long: its share beyond one bound of a bucket is held against the
stable's beyond another, which is smaller at least by that (of the wire's, 1.33 to 2 times)."""
AROUND = 5.0
"""Latency is judged from the bound on that at most so many times 1 - quantile of the stable's answers exceed:
what delays all answers is seen there where the bound beyond the quantile is far."""
MOST_TAIL = 0.05
"""Margin of latency: 1 - quantile, at most this."""
SOUND = 1 / 3
"""A threshold is for a candidate that is usually at most at a third of it: that is the hypothesis which must
be refuted before a share above the threshold counts. At half of it none of 300 simulated candidates failed in
60 000 requests; at 0.7 of it 2 of 100; nearer to it, chance decides whether it passes first."""
LEAST_BOUND = 0.001
"""A share cannot be shown to be 0: for a threshold below this, that it is below this is enough."""
MISMATCH = 0.01
"""Threshold of mismatch where none is given."""
QUANTILE = 0.99
"""Of latency, where none is given."""
RECENT = 6000.0
"""Requests that messages and thresholds look back on, beside the latest interval: two minutes at 50 a second.
Longer would hide for longer what begins late, shorter would let chance cross a threshold."""
RECENT_ANSWERS = 10_000.0
"""The stable's answers from which its quantile is read, and the latest interval's: 100 beyond p99."""
