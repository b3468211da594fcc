"""The kept mutants in what each protocol does for itself, in streams, and in a drain."""

from __future__ import annotations

from tests.mutants.mutant import (
    ALIKE,
    CANCEL,
    EXPIRED,
    HONEST,
    ONCE,
    OWN_ANSWER,
    SIDECAR,
    SIZE,
    Mutant,
)

_SIDECAR = "tests/unit/sidecar"
_V2 = f"{_SIDECAR}/test_protocol_v2.py"
_OPENAI = f"{_SIDECAR}/test_protocol_openai.py"
_STREAM_LINES = f"{_SIDECAR}/test_protocol_item_streams.py"
_ITEMS_WIRE = f"{_SIDECAR}/test_protocol_item_answers.py"
_ITEMS = f"{_SIDECAR}/test_sidecar_item_answers.py"
_STREAMING = f"{_SIDECAR}/test_sidecar_streaming.py"
_PASSING = f"{_SIDECAR}/test_sidecar_passthrough.py"
_DRAIN = f"{_SIDECAR}/test_sidecar_drain.py"

PROTOCOL_MUTANTS = (
    Mutant(
        name="v2: all get the first one's rows",
        breaks=OWN_ANSWER,
        package=SIDECAR,
        old="read.part(start, start + count, part[0].id)",
        new="read.part(0, count, part[0].id)",
        tests=(f"{_V2}::test_joined_and_split_is_what_a_plain_reading_says",),
    ),
    Mutant(
        name="v2: all get the first one's id",
        breaks=OWN_ANSWER,
        package=SIDECAR,
        old="start + count, part[0].id)",
        new="start + count, parts[0][0].id)",
        tests=(f"{_V2}::test_joined_and_split_is_what_a_plain_reading_says",),
    ),
    Mutant(
        name="v2: the key forgets parameters",
        breaks=ALIKE,
        package=SIDECAR,
        old='rest += b"," + _inner(document)',
        new="pass",
        tests=(f"{_V2}::test_what_shares_a_batch",),
    ),
    Mutant(
        name="instances: an item's own answer is another item's",
        breaks=OWN_ANSWER,
        package=SIDECAR,
        old='answers[place] = OwnAnswer(read_answer(entry), "", body)',
        new='answers[count - 1 - place] = OwnAnswer(read_answer(entry), "", body)',
        tests=(_ITEMS_WIRE, _ITEMS),
    ),
    Mutant(
        name="instances: a request of one item gets the first own answer of its batch",
        breaks=OWN_ANSWER,
        package=SIDECAR,
        old="{place: own[start + place] for place in places}",
        new="{place: own[min(own)] for place in places}",
        tests=(_ITEMS_WIRE, _ITEMS),
    ),
    Mutant(
        name="instances: a prediction beside an item's own answer is believed to be meant so",
        breaks=OWN_ANSWER,
        package=SIDECAR,
        old='if predictions[place] != b"null":',
        new="if False:",
        tests=(_ITEMS_WIRE,),
    ),
    Mutant(
        name="instances: a request that passes as it is asks for item answers",
        breaks=OWN_ANSWER,
        package=SIDECAR,
        old="headers = lone_fields(first.request, first.request_id, timeout)",
        new='headers = ((b"x-penstock-item-answers", b"1"),)',
        tests=(_ITEMS,),
    ),
    Mutant(
        name="instances: a failed item's index is that in its batch's part",
        breaks=HONEST,
        package=SIDECAR,
        old="index = part.start + place",
        new="index = place",
        tests=(_ITEMS,),
    ),
    Mutant(
        name="openai: embeddings are taken in the order in which they came",
        breaks=OWN_ANSWER,
        package=SIDECAR,
        old="data = [by_place[place] for place in range(len(data))]",
        new="pass",
        tests=(f"{_OPENAI}::test_each_gets_its_own_embeddings",),
    ),
    Mutant(
        name="openai: each is told the usage of the whole batch",
        breaks=HONEST,
        package=SIDECAR,
        old="own = {name: each[index] for name, each in usages.items()}",
        new="own = usage",
        tests=(f"{_OPENAI}::test_each_gets_its_own_embeddings",),
    ),
    Mutant(
        name="openai: texts and token ids share a batch",
        breaks=ALIKE,
        package=SIDECAR,
        old="parameters = _Parameters(tokens, ",
        new="parameters = _Parameters(False, ",
        tests=(f"{_OPENAI}::test_what_shares_a_batch",),
    ),
    Mutant(
        name="item streams: an item that has ended speaks on",
        breaks=ONCE,
        package=SIDECAR,
        old="if index not in self._open:\n            return []",
        new="pass",
        tests=(_STREAM_LINES,),
    ),
    Mutant(
        name="item streams: a stream that breaks off is complete",
        breaks=HONEST,
        package=SIDECAR,
        old="failed = [Event(item, bad=why) for",
        new="failed = [Event(item, end=True) for",
        tests=(f"{_STREAMING}::test_a_stream_that_ends_early_is_no_complete_answer",),
    ),
    Mutant(
        name="item streams: who does not read fills the memory",
        breaks=SIZE,
        package=SIDECAR,
        old="if self._unread and len(self._unread) + len(data) > MAX_BUFFER:",
        new="if False:",
        tests=(f"{_STREAMING}::test_a_slow_reader_is_cut_and_its_mates_go_on",),
    ),
    Mutant(
        name="item streams: the model works on for clients of whom none is left",
        breaks=CANCEL,
        package=SIDECAR,
        old="self._all_left = True\n            self._reading.cancel()",
        new="self._all_left = True",
        tests=(f"{_STREAMING}::test_when_all_have_left_the_models_connection_is_closed",),
    ),
    Mutant(
        name="item streams: an answer that drips holds its slot past the deadline",
        breaks=EXPIRED,
        package=SIDECAR,
        old="async with asyncio.timeout_at(deadline):",
        new="if True:",
        tests=(f"{_STREAMING}::test_an_answer_that_is_no_stream_has_its_time_as_a_whole",),
    ),
    Mutant(
        name="none: more are with the model than may be",
        breaks=SIZE,
        package=SIDECAR,
        old="while self._queue.requests and not self._paused and len(self._calls) < self.slots:",
        new="while self._queue.requests and not self._paused:",
        tests=(f"{_PASSING}::TestQueue",),
    ),
    Mutant(
        name="none: what has expired is sent",
        breaks=EXPIRED,
        package=SIDECAR,
        old="self._expire()\n            call = self._next()",
        new="call = self._next()",
        tests=(f"{_PASSING}::TestQueue::test_what_expired_in_a_long_turn_is_not_sent_either",),
    ),
    Mutant(
        name="none: who left stays in the queue",
        breaks=CANCEL,
        package=SIDECAR,
        old="self._queue.leave(call)\n            self._changed.set()",
        new="pass",
        tests=(f"{_PASSING}::TestQueue",),
    ),
    Mutant(
        name="drain: what is queued at the timeout hears nothing",
        breaks=ONCE,
        package=SIDECAR,
        old="refused = self._requests.refuse_queued(refusal())",
        new="refused = 0",
        tests=(f"{_DRAIN}::test_at_the_timeout_the_queued_are_refused_and_the_ongoing_run_on",),
    ),
    Mutant(
        name="drain: it is over though requests are with the model",
        breaks=HONEST,
        package=SIDECAR,
        old="line above.\n        await self._requests.idle()",
        new="line above.",
        tests=(f"{_DRAIN}::test_at_the_timeout_the_queued_are_refused_and_the_ongoing_run_on",),
    ),
    Mutant(
        name="drain: requests are refused before everybody knows",
        breaks=HONEST,
        package=SIDECAR,
        old="await self._propagated(self._propagation_delay)",
        new="await self._propagated(0)",
        tests=(f"{_DRAIN}::test_an_idle_pod_takes_requests_for_the_propagation_delay_and_then_is_drained",),
    ),
    Mutant(
        name="drain: requests are refused though clients still connect",
        breaks=HONEST,
        package=SIDECAR,
        old="await self._propagated(left)",
        new="break",
        tests=(f"{_DRAIN}::test_clients_that_still_connect_are_served",),
    ),
)
