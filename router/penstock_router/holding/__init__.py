"""Requests that wait for a pod.

Read in this order: `release_window` (how many are released at once) and `hold_queue` (who is next).
"""
