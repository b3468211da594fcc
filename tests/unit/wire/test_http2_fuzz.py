"""A short, seeded run of the fuzzer of HTTP/2 and gRPC."""

from __future__ import annotations

import random

from penstock_wire.http2 import frames
from tests.fuzz import http2_server

SEEDS = 1000


def test_any_frames_cut_in_any_way_keep_the_invariants() -> None:
    """The invariants stand in the fuzzer's own docstring; a failure prints its seed."""
    for seed in range(SEEDS):
        http2_server.run_seed(seed)


def test_undamaged_conversations_are_answered_on_every_stream() -> None:
    """The fuzzer's agreement is not one about nothing."""
    taken = 0
    for seed in range(200):
        dice = random.Random(seed)
        made = http2_server.conversation(dice)
        streams = {frame[8] for frame in made if frame[3] == frames.HEADERS}
        run = http2_server.check(b"".join(made), dice)
        answered = [frame[2] for frame in run.sent() if frame[0] == frames.HEADERS]
        assert set(answered) == streams
        resets = [frame[3] for frame in run.sent() if frame[0] == frames.RST_STREAM]
        assert set(resets) <= {bytes(4)}  # what is refused by its head needs no body
        taken += len(run.taken)
    assert taken > 200
