"""Time as a test wants it: clocks that it turns, a loop that jumps, and waits for states that have no event.

Read in this order: `hand_clock` (stands still until it is turned), `still_time` (the same for timers beside
real sockets), `fake_loop` (an event loop whose sleeps cost nothing), `waiting` (for a state, with a
deadline), `stalls` (what the machine itself took from a thread).
"""
