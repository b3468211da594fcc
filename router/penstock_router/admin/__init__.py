"""Health and metrics.

Read in this order: `admin` (what is answered) and `thread` (the port, which answers although the router's
loop is busy).
"""
