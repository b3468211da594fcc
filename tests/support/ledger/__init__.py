"""Load whose every request has an id, and whose every execution is recorded.

Read in this order: `ledger_model` (records), `ledger_load` (asks and compares), `zero_loss` (what the tests
of losses share), `fight` (scalers that disagree, under such load).
"""
