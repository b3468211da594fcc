"""The kept mutants of the hop between router and sidecar."""

from __future__ import annotations

from tests.mutants.mutant import (
    BROKEN,
    CANCEL,
    HONEST,
    ONCE,
    OWN_ANSWER,
    ROOM,
    ROUTER,
    SIDECAR,
    WIRE,
    Mutant,
)

_HOP = "tests/process/wire/test_hop.py"
_ENDS = "tests/process/wire/test_hop_ends.py"
_HEADS = "tests/unit/wire/test_hop_heads.py"
_ROOM = "tests/process/wire/test_hop_room.py"
_BACK = "tests/unit/sidecar/test_sidecar_hand_back.py"
_LATE = "tests/unit/router/pods/test_router_late_binding.py"
_CENTRAL = "tests/unit/router/pods/test_router_central_queue.py"
_HOSTILE = "tests/process/wire/test_hop_hostile.py"

HOP_MUTANTS = (
    Mutant(
        name="an answer on a hop goes to the request that waits longest",
        breaks=OWN_ANSWER,
        package=WIRE,
        old="call = self._calls.get(number)\n        headers, lines = head.fields",
        new="number = min(self._calls, default=number)\n        call = self._calls.get(number)\n"
        "        headers, lines = head.fields",
        tests=(f"{_HOP}::test_requests_share_a_connection_and_each_gets_its_own_answer",),
    ),
    Mutant(
        name="a request's number is used again when another has ended",
        breaks=OWN_ANSWER,
        package=WIRE,
        old="self._number = number = self._number + 1",
        new="self._number = number = len(self._calls) + 1",
        tests=(f"{_HOP}::test_what_heads_share_is_one_object_and_what_differs_comes_with_each",),
    ),
    Mutant(
        name="a slot that is used again still means the head before",
        breaks=OWN_ANSWER,
        package=WIRE,
        old="            del self._slots[before]",
        new="            pass",
        tests=(
            f"{_HEADS}::test_the_peer_s_table_has_in_each_slot_what_the_sender_means",
            f"{_HOP}::test_more_heads_than_slots_are_each_read_as_they_were_sent",
        ),
    ),
    Mutant(
        name="requests with the same fields have one target",
        breaks=OWN_ANSWER,
        package=WIRE,
        old="if fields is self._latest and target == self._latest_target and",
        new="if fields is self._latest and",
        tests=(f"{_HOP}::test_requests_that_share_fields_may_differ_in_all_else",),
    ),
    Mutant(
        name="a hop's server does not learn that a request was given up",
        breaks=CANCEL,
        package=WIRE,
        old="        self.send(frames.frame(frames.CANCEL, call.number))",
        new="        pass",
        tests=(f"{_HOP}::test_who_gives_up_frees_the_place_at_once_and_harms_no_other",),
    ),
    Mutant(
        name="a request that was given up on a hop stays with its service",
        breaks=CANCEL,
        package=WIRE,
        old='self._drop(exchange, "the client gave its request up")',
        new="self._end(exchange)",
        tests=(f"{_HOP}::test_who_gives_up_frees_the_place_at_once_and_harms_no_other",),
    ),
    Mutant(
        name="a goodbye is taken to mean that the last request was not read either",
        breaks=ONCE,
        package=WIRE,
        old="for number, call in self._calls.items() if number > last]",
        new="for number, call in self._calls.items() if number >= last]",
        tests=(f"{_ENDS}::test_what_a_leaving_server_had_not_taken_is_known_to_be_unread",),
    ),
    Mutant(
        name="a request is taken after the goodbye that said it was not",
        breaks=ONCE,
        package=WIRE,
        old="        if self._leaving == LEFT:\n"
        "            return  # it was sent before the client read our good",
        new="        if False:\n            return  # it was sent before the client read our good",
        tests=(f"{_ENDS}::test_what_a_leaving_server_had_not_taken_is_known_to_be_unread",),
    ),
    Mutant(
        name="of a hop that was reset nothing is said to have been read",
        breaks=HONEST,
        package=WIRE,
        old="number > self._flushed or number == self._unread",
        new="number > self._flushed or self._unread > 0",
        tests=(f"{_HOSTILE}::test_a_reset_says_that_the_last_request_was_not_read",),
    ),
    Mutant(
        name="a peer may send without credit",
        breaks=BROKEN,
        package=WIRE,
        old="        if self._left < 0:\n            raise ValueError",
        new="        if False:\n            raise ValueError",
        tests=(f"{_HOSTILE}::test_bytes_without_credit_end_the_connection",),
    ),
    Mutant(
        name="what is on the way takes no part of a pod's room",
        breaks=ROOM,
        package=WIRE,
        old="max(0, free - (self._number - last))",
        new="max(0, free)",
        tests=(f"{_ROOM}::test_what_is_on_the_way_takes_its_part_of_the_room",),
    ),
    Mutant(
        name="each router is told all of a pod's room",
        breaks=ROOM,
        package=WIRE,
        old="return -(-free // max(1, len(self.connections))), waiting",
        new="return free, waiting",
        tests=(f"{_ROOM}::test_each_client_is_told_its_part_and_a_new_one_at_once",),
    ),
    Mutant(
        name="a request that is sent takes no room",
        breaks=ROOM,
        package=ROUTER,
        old="            self.free -= 1",
        new="            pass",
        tests=(f"{_LATE}::test_requests_go_where_they_begin_at_once_each_pod_in_turn",),
    ),
    Mutant(
        name="as much is asked back as waits, whatever room there is",
        breaks=ROOM,
        package=ROUTER,
        old="count = max(min(room, pod.waiting), ",
        new="count = max(pod.waiting, ",
        tests=(f"{_LATE}::test_what_waits_at_the_fullest_pod_is_asked_back_once_as_much_as_others_begin",),
    ),
    Mutant(
        name="the fullest pod is asked first, though it has nothing to hand back",
        breaks=ROOM,
        package=ROUTER,
        old="able.sort(key=lambda pod: (pod.asked, pod.vain_at, pod not in leaving, -pod.level))",
        new="able.sort(key=lambda pod: (pod.asked, pod not in leaving, -pod.level))",
        tests=(f"{_LATE}::test_requests_that_are_bound_to_the_fullest_pod_keep_no_others_where_they_wait",),
    ),
    Mutant(
        name="a pod with one slot gets as much as one with eight",
        breaks=ROOM,
        package=ROUTER,
        old="    if first.capacity and other.capacity:\n",
        new="    if False:\n",
        tests=(f"{_LATE}::test_where_none_has_room_a_pod_that_takes_more_at_once_gets_more",),
    ),
    Mutant(
        name="what waits stays where it is until another pod is idle",
        breaks=ROOM,
        package=ROUTER,
        old="    if pod.level - even < MUCH_MORE:\n",
        new="    if True:\n",
        tests=(f"{_CENTRAL}::test_when_pods_are_added_those_who_wait_go_to_them_and_run_once",),
    ),
    Mutant(
        name="a router takes from one pod, and looks at the next one later",
        breaks=ROOM,
        package=ROUTER,
        old="self._level_at.pop(backend, None)  # added pods",
        new="pass  # added pods",
        tests=(f"{_CENTRAL}::test_added_pods_have_their_part_of_what_waits_within_milliseconds_and_no_more",),
    ),
    Mutant(
        name="routers do not hear what others of them sent to a pod with a queue",
        breaks=ROOM,
        package=WIRE,
        old="doubled = room[1] >= 2 * announced[1] > 0",
        new="doubled = False",
        tests=(
            f"{_CENTRAL}::test_added_pods_have_their_part_of_what_waits_within_milliseconds_and_no_more[3]",
        ),
    ),
    Mutant(
        name="a request that the model has is handed back",
        breaks=ONCE,
        package=SIDECAR,
        old="        if call.done or not call.queued:",
        new="        if call.done:",
        tests=(f"{_BACK}::test_of_what_passes_through_only_what_waits_is_handed_back",),
    ),
)
