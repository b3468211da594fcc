"""Copies of requests for mirrors, whose answers no client gets.

Read in this order: `compare` (a mirror's answer against the one that was served), `totals` (counters),
`pressure` (when the router is short of CPU), `large_answers` (mirrors that answer more than is read whole),
`compare_queue` (comparisons that wait for their turn), `mirror` (one mirror: its draw, the fields of its
copies), `copy` (one copy), `eligibility` (why a request is not copied) and `mirrors` (sends them).
"""
