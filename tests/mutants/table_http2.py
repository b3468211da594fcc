"""The kept mutants of HTTP/2 and gRPC."""

from __future__ import annotations

from tests.mutants.mutant import ALIKE, CANCEL, HONEST, OWN_ANSWER, WIRE, Mutant

_HTTP2 = "tests/process/wire/test_http2.py"
_FIELDS = "tests/unit/wire/test_http2_fields.py"
_INFERENCE = "tests/unit/wire/test_http2_inference.py"

HTTP2_MUTANTS = (
    Mutant(
        name="a field's value may hold another field",
        breaks=OWN_ANSWER,
        package=WIRE,
        old="return not (outer or value.translate(None, IN_VALUES))",
        new="return not outer",
        tests=(f"{_HTTP2}::test_a_malformed_request_resets_its_stream_alone[a line break]",),
    ),
    Mutant(
        name="heads that differ in a value are one",
        breaks=ALIKE,
        package=WIRE,
        old="key = tuple(shared)",
        new="key = tuple([(name, b'') for name, _ in shared])",
        tests=(f"{_FIELDS}::test_heads_that_came_before_are_found_again_without_what_differs",),
    ),
    Mutant(
        name="a block means what its bytes meant before the table changed",
        breaks=OWN_ANSWER,
        package=WIRE,
        old="            self._changes = reader.changes\n            self._starts.clear()",
        new="            self._changes = reader.changes",
        tests=(f"{_FIELDS}::test_a_block_that_begins_as_another_is_read_in_full",),
    ),
    Mutant(
        name="calls of one size have one description",
        breaks=OWN_ANSWER,
        package=WIRE,
        old="key = (text, tuple(sizes))",
        new="key = (text[:8], tuple(sizes))",
        tests=(f"{_INFERENCE}::test_a_request_keeps_its_bytes_behind_a_description",),
    ),
    Mutant(
        name="who resets a stream is waited for",
        breaks=CANCEL,
        package=WIRE,
        old="        self._count_reset()\n        self._drop(exchange)",
        new="        self._count_reset()\n        self._remove(exchange)",
        tests=(f"{_HTTP2}::test_a_client_that_leaves_is_told_to_the_service",),
    ),
    Mutant(
        name="an answer of HTTP/2 that breaks off looks whole",
        breaks=HONEST,
        package=WIRE,
        old="        self.task = None\n        self.carrier.cut(self, frames.INTERNAL_ERROR)",
        new="        self.task = None\n        self.finish()",
        tests=(f"{_HTTP2}::test_a_stream_that_fails_is_reset",),
    ),
)
