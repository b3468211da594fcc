"""The kept mutants: small edits, each of which breaks one promise, and the tests that must fail for it.

A mutant is found by its text, wherever in its package that text has moved to. Choose a text that says what it
does in one or two lines, so that it changes only when the promise's own code does; then put the mutant in
terms of the new code.
"""

from __future__ import annotations

from tests.mutants.mutant import (
    ALIKE,
    BROKEN,
    CANCEL,
    CORE,
    EXPIRED,
    GUARDS,
    HONEST,
    ONCE,
    OVERLOAD,
    OWN_ANSWER,
    PREPARED,
    ROUTER,
    SIDECAR,
    SIZE,
    WIRE,
    Mutant,
)
from tests.mutants.table_hop import HOP_MUTANTS
from tests.mutants.table_http2 import HTTP2_MUTANTS
from tests.mutants.table_protocols import PROTOCOL_MUTANTS

__all__ = ["CORE", "MUTANTS", "ROUTER", "SIDECAR", "WIRE", "Mutant"]

_UNIT = "tests/unit"
_PROCESS = "tests/process"
_ERRORS = f"{_PROCESS}/sidecar/test_sidecar_process_errors.py"
_DISPATCH = f"{_UNIT}/sidecar/test_sidecar_dispatcher.py"
_CHANGES = f"{_UNIT}/sidecar/test_sidecar_dispatcher_changes.py"
_ANSWERS = f"{_UNIT}/sidecar/test_sidecar_dispatcher_answers.py"
_DEADLINES = f"{_UNIT}/sidecar/test_sidecar_dispatcher_deadlines.py"
_QUEUE = f"{_UNIT}/sidecar/test_sidecar_queue.py"
_CURVE = f"{_UNIT}/sidecar/test_sidecar_latency_model.py"
_ENDS = f"{_UNIT}/sidecar/test_sidecar_dispatcher_ends.py"
_MACHINE = f"{_UNIT}/sidecar/test_sidecar_machine.py"
_ISOLATION = f"{_UNIT}/sidecar/test_sidecar_bisection.py"
_GROUPS = f"{_UNIT}/sidecar/test_sidecar_group_size.py"
_CROWD = f"{_UNIT}/sidecar/test_sidecar_eviction.py"
_FULL = f"{_UNIT}/sidecar/test_sidecar_dispatcher_full.py"
_REFUSALS = f"{_UNIT}/sidecar/test_sidecar_error_responses.py"
_MODEL = f"{_UNIT}/sidecar/test_sidecar_model.py"
_LIFECYCLE = f"{_PROCESS}/sidecar/test_sidecar_process_lifecycle.py"
_FRONT = f"{_PROCESS}/wire/test_http_server.py"
_MEMORY = f"{_PROCESS}/wire/test_http_memory.py"
_KNOWN = f"{_UNIT}/wire/test_http_server_head_cache.py"
_KNOWN_ANSWERS = f"{_PROCESS}/wire/test_http_client_known_heads.py"
_FRONT_RFC = f"{_PROCESS}/wire/test_http_server_rfc.py"
_FRONT_ANSWERS = f"{_PROCESS}/wire/test_http_server_answers.py"
_UPSTREAM = f"{_PROCESS}/wire/test_http_client.py"
_UPSTREAM_STREAMS = f"{_PROCESS}/wire/test_http_client_streams.py"
_UPSTREAM_RFC = f"{_PROCESS}/wire/test_http_client_rfc.py"
_UNTOLD = "test_an_end_that_the_loop_has_not_told_yet_is_seen_before_sending"

MUTANTS = (
    # -- each request gets its own answer
    Mutant(
        name="answers go to the batch's requests in reverse",
        breaks=OWN_ANSWER,
        package=SIDECAR,
        old="zip(parts, answers, strict=True)",
        new="zip(parts, reversed(answers), strict=True)",
        tests=(_MACHINE, f"{_DISPATCH}::TestAnswers"),
    ),
    Mutant(
        name="an answer is split one item off",
        breaks=OWN_ANSWER,
        package=SIDECAR,
        old="predictions[start] if count == 1 else",
        new="predictions[start - 1] if count == 1 else",
        tests=(f"{_UNIT}/sidecar/test_protocol_instances.py",),
    ),
    Mutant(
        name="parts of a request are joined in the order in which they were answered",
        breaks=OWN_ANSWER,
        package=SIDECAR,
        old="for index in sorted(self._answers)]",
        new="for index in self._answers]",
        tests=(f"{_DISPATCH}::TestLimits",),
    ),
    Mutant(
        name="an answer is taken though it is for another number of items",
        breaks=OWN_ANSWER,
        package=SIDECAR,
        old="if len(predictions) != count:",
        new="if len(predictions) < count:",
        tests=(f"{_UNIT}/sidecar/test_protocol_instances.py",),
    ),
    # -- no batch is over size
    Mutant(
        name="a batch holds one item too many",
        breaks=SIZE,
        package=SIDECAR,
        old="room, space = limits.size, limits.bytes",
        new="room, space = limits.size + 1, limits.bytes",
        tests=(_MACHINE, _QUEUE),
    ),
    Mutant(
        name="a batch holds as many bytes as come",
        breaks=SIZE,
        package=SIDECAR,
        old="(count > room - items or before > space - size) and not line.lone",
        new="(count > room - items) and not line.lone",
        tests=(f"{_DISPATCH}::TestLimits",),
    ),
    Mutant(
        name="the objective makes no batch smaller",
        breaks=SIZE,
        package=SIDECAR,
        old="return min(limit, self.latency_model.largest(now, cls, self.limit, service, objective))",
        new="return limit",
        tests=(_DEADLINES,),
    ),
    Mutant(
        name="one batch too many is with the model",
        breaks=SIZE,
        package=SIDECAR,
        old="self.busy >= self.count:\n            return 0\n        return self.count - self.busy",
        new="self.busy > self.count:\n            return 0\n        return self.count - self.busy + 1",
        tests=(_MACHINE, f"{_DISPATCH}::test_slots_are_never_exceeded_and_all_are_used"),
    ),
    Mutant(
        name="batches go on while the model is reconfigured",
        breaks=SIZE,
        package=SIDECAR,
        old="if self.paused or self.busy >= self.count:",
        new="if self.busy >= self.count:",
        tests=(f"{_DEADLINES}::test_a_pause_sends_nothing_and_quiet_means_that_no_batch_is_with_the_model",),
    ),
    # -- unlike requests never share a batch
    Mutant(
        name="the key forgets header fields",
        breaks=ALIKE,
        package=SIDECAR,
        old="values = (method, target, fields, parameters)",
        new="values = (method, target, (), parameters)",
        tests=(f"{_DISPATCH}::test_unlike_requests_never_share_a_batch",),
    ),
    Mutant(
        name="the key forgets the protocol's parameters",
        breaks=ALIKE,
        package=SIDECAR,
        old="values = (method, target, fields, parameters)",
        new="values = (method, target, fields, None)",
        tests=(f"{_DISPATCH}::test_unlike_requests_never_share_a_batch",),
    ),
    Mutant(
        name="two callers' authorizations are one key",
        breaks=ALIKE,
        package=WIRE,
        old='        b"authorization",  #',
        new="        #",
        tests=(f"{_DISPATCH}::test_unlike_requests_never_share_a_batch",),
    ),
    # -- who leaves is sent no more, and takes nobody along
    Mutant(
        name="who left stays in the queue",
        breaks=CANCEL,
        package=SIDECAR,
        old="self.queue.leave(work)\n        self._check_idle()",
        new="pass\n        self._check_idle()",
        tests=(_MACHINE, f"{_ENDS}::TestLeaving"),
    ),
    Mutant(
        name="one that leaves ends the batch of those who wait",
        breaks=CANCEL,
        package=SIDECAR,
        old="return count < len(parts)",
        new="return count < 1",
        tests=(f"{_ENDS}::TestLeaving",),
    ),
    Mutant(
        name="one that leaves takes the others' turns along",
        breaks=CANCEL,
        package=SIDECAR,
        old="self._listed.pop(member, None)\n        if not self._listed:\n            self._heap.clear()",
        new="self._listed.clear()\n        self._heap.clear()",
        tests=(_QUEUE,),
    ),
    Mutant(
        name="a batch that is cut off tells its requests nothing",
        breaks=CANCEL,
        package=SIDECAR,
        old="except asyncio.CancelledError:\n            self._settle_all(batch.parts, _stopped())",
        new="except asyncio.CancelledError:\n            pass",
        tests=(_ENDS,),
    ),
    Mutant(
        name="who leaves leaves the model's connection open",
        breaks=CANCEL,
        package=WIRE,
        old="            give_up()\n            if not self._came",
        new="            if not self._came",
        tests=(f"{_UPSTREAM_STREAMS}::TestBroken::test_who_leaves_ends_the_connection_and_poisons_nothing",),
    ),
    Mutant(
        name="a client that leaves is not noticed by the front",
        breaks=CANCEL,
        package=WIRE,
        old="gone, current.gone = current.gone, None\n        if gone is not None:",
        new="gone, current.gone = current.gone, None\n        if False:",
        tests=(f"{_FRONT}::test_a_client_that_leaves_cancels_its_handler",),
    ),
    Mutant(
        name="a known head swallows what follows its request",
        breaks=OWN_ANSWER,
        package=WIRE,
        old="if known is not None and (len(data) == end or len(data) - end == known.length):",
        new="if known is not None:",
        tests=(f"{_KNOWN}::test_what_is_not_one_whole_request_goes_to_the_parser[two at once]",),
    ),
    Mutant(
        name="an answer to HEAD is taken for one that has a body",
        breaks=OWN_ANSWER,
        package=WIRE,
        old="if self._head_only or self._streamed or self._is_long:\n            return False",
        new="if self._streamed or self._is_long:\n            return False",
        tests=(f"{_KNOWN_ANSWERS}::test_an_answer_to_head_has_no_body_though_its_head_is_known",),
    ),
    Mutant(
        name="a request with two arrays of instances loses one",
        breaks=HONEST,
        package=WIRE,
        old="return slices if used == size else None",
        new="return slices",
        tests=(f"{_UNIT}/wire/test_wire_json.py::TestSole::test_anything_else_is_left_to_the_slow_way",),
    ),
    # -- what has expired is never sent
    Mutant(
        name="a batch begins with a request whose time is over",
        breaks=EXPIRED,
        package=SIDECAR,
        old="is not None and head.expires <= now:",
        new="is not None and head.expires <= now - 1e9:",
        tests=(_ENDS,),
    ),
    Mutant(
        name="what has expired stays in the queue",
        breaks=EXPIRED,
        package=SIDECAR,
        old="again = earlier(again, self._cutter.expire(now))",
        new="pass",
        tests=(f"{_ENDS}::TestDeadlines",),
    ),
    Mutant(
        name="a part-full batch waits until its deadline",
        breaks=EXPIRED,
        package=SIDECAR,
        old="return max(service, _DEADLINE_SHARE * (line.deadline - line.oldest))",
        new="return service",
        tests=(f"{_DISPATCH}::TestWaiting",),
    ),
    Mutant(
        name="a slot is held beyond a deadline",
        breaks=EXPIRED,
        package=SIDECAR,
        old="left = min(self._since + bound, latest) - now",
        new="left = self._since + bound - now",
        tests=(f"{_UNIT}/sidecar/test_sidecar_hold_policy.py",),
    ),
    Mutant(
        name="what comes too late is taken in",
        breaks=EXPIRED,
        package=SIDECAR,
        old="if work.expires <= work.arrived:",
        new="if False:",
        tests=(f"{_ENDS}::TestDeadlines",),
    ),
    Mutant(
        name="who has expired is run again with its neighbours",
        breaks=EXPIRED,
        package=SIDECAR,
        old="waiting = [part for part in held if not part.work.done]",
        new="waiting = list(held)",
        tests=(_ANSWERS,),
    ),
    # -- a broken connection is never used again
    Mutant(
        name="each connection goes back to the pool",
        breaks=BROKEN,
        package=WIRE,
        old="if self.reusable:\n            self.resume_reading()",
        new="if True:\n            self.reusable = True\n            self.resume_reading()",
        tests=(_UPSTREAM,),
    ),
    Mutant(
        name="a connection that speaks unasked is used on",
        breaks=BROKEN,
        package=WIRE,
        old="it answers no request\n            self.reusable = False\n            self.transport.abort()",
        new="it answers no request\n            pass",
        tests=(f"{_UPSTREAM_STREAMS}::TestBroken::test_surplus_bytes_while_idle_cost_the_connection",),
    ),
    Mutant(
        name="a connection that its peer will close is used on",
        breaks=BROKEN,
        package=WIRE,
        old="if not parser.should_keep_alive() or (old",
        new="if (old",
        tests=(_UPSTREAM,),
    ),
    Mutant(
        name="a connection that HTTP/1.0 both keeps and closes is used on",
        breaks=BROKEN,
        package=WIRE,
        old="if not parser.should_keep_alive() or (old and not old_keeps(self._framing)):",
        new="if not parser.should_keep_alive():",
        tests=(_UPSTREAM,),
    ),
    Mutant(
        name="an idle connection is taken without a look whether its peer has ended it",
        breaks=BROKEN,
        package=WIRE,
        old="(age < LOOK_SECONDS or peer_liveness.nothing_waits(connection.transport))",
        new="age < self._idle_seconds",
        tests=(f"{_UPSTREAM_STREAMS}::TestBroken::{_UNTOLD}",),
    ),
    # -- one slow start locks no healthy model out
    Mutant(
        name="samples never expire",
        breaks=GUARDS,
        package=SIDECAR,
        old="while samples and samples[0][0] <= now - self.horizon:",
        new="while False:",
        tests=(_CURVE,),
    ),
    Mutant(
        name="the last that waits is dropped too",
        breaks=GUARDS,
        package=SIDECAR,
        old="work.deadline < doom and (parts or self.requests > 1)",
        new="work.deadline < doom",
        tests=(_QUEUE, _DEADLINES),
    ),
    Mutant(
        name="the last that waits is expired at its objective",
        breaks=GUARDS,
        package=SIDECAR,
        old="if work.expires > now and queue.requests == 1:",
        new="if False:",
        tests=(_DEADLINES,),
    ),
    Mutant(
        name="a model that loads is learned from",
        breaks=GUARDS,
        package=SIDECAR,
        old="if not self.learning:",
        new="if False:",
        tests=(_CURVE,),
    ),
    # -- each request is answered exactly once
    Mutant(
        name="that a request has its outcome is not remembered",
        breaks=ONCE,
        package=SIDECAR,
        old="return  # its client left meanwhile\n        work.done = True\n",
        new="return  # its client left meanwhile\n",
        tests=(_MACHINE,),
    ),
    Mutant(
        name="a second answer is sent",
        breaks=ONCE,
        package=WIRE,
        old="self.connection = self.gone = None\n            connection.answer(self, response)",
        new="connection.answer(self, response)",
        tests=(f"{_FRONT_ANSWERS}::test_a_second_answer_is_none",),
    ),
    Mutant(
        name="a half that passed without one of its requests accuses the other half",
        breaks=ONCE,
        package=SIDECAR,
        old="if not whole or self._stop < self._end:",
        new="if self._stop < self._end:",
        tests=(
            f"{_ISOLATION}::test_a_half_that_passed_without_one_of_its_requests_does_not_accuse_the_other_half",
        ),
    ),
    Mutant(
        name="a request gets what the model answered to its whole batch",
        breaks=OWN_ANSWER,
        package=SIDECAR,
        old="outcome = unresolved(outcome, len(parts))",
        new="pass",
        tests=(f"{_ANSWERS}::test_with_a_policy_of_fail_no_request_gets_what_the_model_said_of_others",),
    ),
    Mutant(
        name="batches stay full however many requests are bad",
        breaks=OVERLOAD,
        package=SIDECAR,
        old="if key.faults is not None and key.faults.limit < size:",
        new="if False:",
        tests=(f"{_GROUPS}::test_batches_are_full_again_when_bad_requests_have_ceased",),
    ),
    # -- what is said of a request is true
    Mutant(
        name="what ran in part is called unexecuted",
        breaks=HONEST,
        package=SIDECAR,
        old="self.settle(work, executed if work.executed else error)",
        new="self.settle(work, error)",
        tests=(f"{_CHANGES}::TestChanges",),
    ),
    Mutant(
        name="a model may say what only Penstock may say",
        breaks=HONEST,
        package=SIDECAR,
        old="and (not field[0].startswith(PREFIX) or (field[0] == REASON and field[1] in MODEL_REASONS))",
        new="",
        tests=(
            f"{_PROCESS}/sidecar/test_sidecar_process.py::test_a_request_alone_passes_byte_for_byte_both_ways",
            f"{_ERRORS}::test_of_a_models_fields_that_are_penstocks_only_the_sdks_reasons_pass",
        ),
    ),
    Mutant(
        name="a request with two hosts is served",
        breaks=HONEST,
        package=WIRE,
        old="if hosts > 1 or (not hosts and not parsed.old):",
        new="if not hosts and not parsed.old:",
        tests=(f"{_FRONT_RFC}::test_what_a_server_must_refuse_is_refused",),
    ),
    Mutant(
        name="a handler's field may begin another answer",
        breaks=HONEST,
        package=WIRE,
        old="if len(lines.translate(None, IN_VALUES)) != 2 * (len(headers) - 1):",
        new='if lines.count(b"\\0"):',
        tests=(f"{_FRONT_ANSWERS}::test_an_answer_that_cannot_be_sent_is_500",),
    ),
    Mutant(
        name="that the process hung is forgotten before anybody hears of it",
        breaks=HONEST,
        package=SIDECAR,
        old="self._hung = (now - self._beat, now)",
        new="pass",
        tests=(f"{_LIFECYCLE}::test_a_process_that_hung_says_so_to_who_asked_meanwhile",),
    ),
    Mutant(
        name="an answer's status that is none is waited behind",
        breaks=HONEST,
        package=WIRE,
        old="if not 100 <= status <= 599:",
        new="if status > 599:",
        tests=(f"{_UPSTREAM_RFC}::test_an_answer_that_must_not_be_forwarded_is_none",),
    ),
    # -- refusing the many keeps nobody from being served
    Mutant(
        name="a share that fills the queue keeps the others out",
        breaks=OVERLOAD,
        package=SIDECAR,
        old="if held + amount > part:",
        new="if True:",
        tests=(_CROWD, _FULL),
    ),
    Mutant(
        name="the less urgent keep their places",
        breaks=OVERLOAD,
        package=SIDECAR,
        old="if sum(totals) + amount - limit <= sum(totals[level + 1 :]):",
        new="if False:",
        tests=(_CROWD, _FULL),
    ),
    Mutant(
        name="one of which a part is with the model gives way",
        breaks=HONEST,
        package=SIDECAR,
        old="if self._eviction is not None:\n                    subqueue.group.newest.discard(work)",
        new="if False:\n                    pass",
        tests=(_CROWD, _FULL),
    ),
    Mutant(
        name="what hangs is waited for until SIGKILL",
        breaks=HONEST,
        package=SIDECAR,
        old="return self._began + self.grace - margin",
        new="return self._began + self.grace",
        tests=(f"{_UNIT}/sidecar/test_sidecar_drain.py",),
    ),
    Mutant(
        name="what holds for all who come is kept when the queue has become shorter",
        breaks=OVERLOAD,
        package=SIDECAR,
        old="self.late.clear()",
        new="pass",
        tests=(f"{_REFUSALS}::test_what_is_turned_away_would_not_be_accepted_whatever_happens_meanwhile",),
    ),
    Mutant(
        name="all who are refused are told at once",
        breaks=OVERLOAD,
        package=SIDECAR,
        old="if self._sent < AT_ONCE:",
        new="if self._sent >= 0:",
        tests=(f"{_REFUSALS}::test_in_one_turn_of_the_loop_a_few_are_told_and_the_others_in_order_after_it",),
    ),
    Mutant(
        name="a queue is full though a slot is free",
        breaks=OVERLOAD,
        package=SIDECAR,
        old="self._is_full(1, free)",
        new="self._is_full(1, 0)",
        tests=(f"{_REFUSALS}::test_what_is_turned_away_would_not_be_accepted_whatever_happens_meanwhile",),
    ),
    # -- nothing is sent to a model that was not prepared
    Mutant(
        name="a request that was connecting goes to whatever process has taken the connection",
        breaks=PREPARED,
        package=SIDECAR,
        old="        check()\n\n    def _check_prepared",
        new="\n    def _check_prepared",
        tests=(
            f"{_MODEL}::test_a_request_on_its_way_to_a_process_that_was_replaced_does_not_reach_the_next_unprepared",
        ),
    ),
    Mutant(
        name="a process that took another's place is taken for that one where nobody was refused",
        breaks=PREPARED,
        package=SIDECAR,
        old="return bool(before) and before.isdisjoint(now)",
        new="return False",
        tests=(f"{_PROCESS}/sidecar/test_sidecar_restart_detector.py",),
    ),
    Mutant(
        name="what comes while the model is being prepared is sent to it",
        breaks=PREPARED,
        package=SIDECAR,
        old="            return None\n        return self._upstream.begin(",
        new="            pass\n        return self._upstream.begin(",
        tests=(
            f"{_MODEL}::test_a_request_on_its_way_to_a_process_that_was_replaced_does_not_reach_the_next_unprepared",
        ),
    ),
    Mutant(
        name="what comes is not taken for kept",
        breaks=OVERLOAD,
        package=WIRE,
        old="        self.room -= size\n",
        new="        self.room -= RECEIPT_BYTES\n",
        tests=(
            f"{_MEMORY}::test_no_more_is_kept_than_is_taken_for_kept",
            f"{_MEMORY}::test_who_keeps_most_for_longest_gives_way",
        ),
    ),
    *PROTOCOL_MUTANTS,
    *HOP_MUTANTS,
    *HTTP2_MUTANTS,
)
