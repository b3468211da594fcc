"""Constants for the size of harm and the certainty of a verdict, with their reasons."""

from __future__ import annotations

import math

ALPHA = 1 / 200
"""The largest share of healthy candidates that fails, whatever the number of metrics and looks."""
MOST_TESTS = 16
"""Largest number of tests in a release: eight metrics, each against the stable and against a threshold."""
FAIL = -math.log(ALPHA / MOST_TESTS)
"""Logarithm of the evidence at which a candidate fails: 3200 to 1."""
FAIL_CAP = FAIL + 3.0
"""Cap on the kept evidence against a candidate: if onFailure is Pause, a mended candidate soon recovers."""
PASS = math.log(20)
"""Logarithm of the evidence at which a candidate passes: of candidates beyond the margin at most 1 in 20
passes a metric. A wrong pass costs less than a wrong failure, since the next intervals judge again."""
PASS_CAP = PASS + 3.0
"""Cap on the kept evidence for a candidate: if it goes bad in a later step, it loses its pass at once."""

ERRORS = 0.01
"""Share of the requests that the stable answers well and the candidate may fail. A smaller share is not even
noticed in a retry budget; this one takes about 600 requests to show. It is not looser if the stable fails
too: a ratio like "twice the stable's" would let a candidate fail 9 % beside a stable's 5 %."""
SLOWER = 1.25
"""Factor by which the candidate may be slower: its share beyond one bound of a bucket is compared with the
stable's beyond a bound that is smaller by at least this factor (1.33 to 2 times with the wire's buckets)."""
AROUND = 5.0
"""Latency is judged from the bound that at most this many times 1 - quantile of the stable's answers exceed:
it shows a delay of all answers even if the next bound beyond the quantile is far."""
MOST_TAIL = 0.05
"""Margin of latency: 1 - quantile, at most this."""
SOUND = 1 / 3
"""A healthy candidate is usually at most at this share of a threshold: this hypothesis must be refuted before
a share above the threshold counts. At half of the threshold none of 300 simulated candidates failed in 60 000
requests; at 0.7 of it 2 of 100; nearer to it, chance decides whether a candidate passes first."""
LEAST_BOUND = 0.001
"""Smallest bound that is tested, since a share cannot be shown to be 0; it replaces a lower threshold."""
MISMATCH = 0.01
"""Default threshold of mismatch."""
QUANTILE = 0.99
"""Default quantile of latency."""
RECENT = 6000.0
"""Earlier requests that messages and thresholds count beside the latest interval: two minutes at 50 a second.
More would hide a late fault for longer, fewer would let chance cross a threshold."""
RECENT_ANSWERS = 10_000.0
"""Recent answers of the stable, beside the latest interval's, that give its quantile: 100 beyond p99."""
