"""Admission: whether a request may enter the queue.

Read in this order: `slots` (the right to have batches with the model), `controller` (decides), `errors` (the
errors of rejected and dropped requests) and `error_responses` (their answers, made once and sent a few at a
time).
"""
