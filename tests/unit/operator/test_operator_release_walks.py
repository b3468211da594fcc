"""Releases in a world where everything happens: no weight is jumped over, none is above what pods allow."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock_operator.api.strategy import ReleaseState, Strategy
from penstock_operator.releases import capacity, machine, standing, steps
from penstock_operator.releases.look import moment
from penstock_operator.releases.state import Advance, Release, Seen
from tests.support.worlds.releases import NOW, seen, strategy, verdicts

HAPPENS = (
    *["nothing"] * 6,
    *["crash", "routers are slow"] * 3,
    *["a pod is lost", "all pods are lost", "a pod comes", "all pods come", "the stable grows"] * 2,
    "the stable loses its pods",
    *["waiting", "passing", "the clock goes back", "no routers"],
    *["failing", "edit", "other pair", "promote", "promote-full", "pause", "abort", "typo"],
    *["candidate goes", "candidate comes", "stable goes", "stable comes", "candidate is made anew"],
)
DISTURBS = ("edit", "other pair", "promote", "promote-full", "abort")
"""What moves a release to another step than the next."""


@st.composite
def strategies(draw: st.DrawFn, **members: Any) -> Strategy:
    """Any strategy that can be followed, with weights that go back, too."""
    parts = st.one_of(
        st.builds(lambda weight: {"setWeight": weight}, st.sampled_from([0, 1, 5, 10, 25, 50, 90, 100])),
        st.builds(lambda time: {"pause": time}, st.sampled_from(["0s", "45s", "Manual"])),
    )
    first = draw(st.sampled_from([[], [{"mirror": 20}], [{"mirror": 20}, {"pause": "30s"}, {"mirror": 0}]]))
    usual = {
        "steps": tuple(first + draw(st.lists(parts, min_size=1, max_size=5))),
        "metrics": draw(st.sampled_from([(), ({"name": "errorRatio"},)])),
        "onFailure": draw(st.sampled_from(["Rollback", "Pause"])),
        "promotion": draw(st.sampled_from(["Auto", "Manual"])),
    }
    return strategy(**(usual | members))


@dataclass
class World:
    """An operator that looks, routers that take up what is stored, pods, and somebody with ideas.

    Args:
        most: pods that either backend may have; None where nothing scales them.
    """

    of: Strategy
    edited: Strategy
    pods: int
    most: int | None = 20
    now: Any = NOW
    stored: Release | None = None
    routers: tuple[int, int] | None = None
    ready: int = 0
    names: set[str] = field(default_factory=lambda: {"old", "new"})
    uid: int = 0
    said: str = "Pass"
    action: str | None = None

    def happen(self, what: str) -> None:
        """One thing of HAPPENS changes the world."""
        if what in machine.ACTIONS or what == "typo":
            self.action = f"{what}@{self.now.isoformat()}"
        elif what == "edit":
            self.of, self.edited = self.edited, self.of
        elif what == "other pair":
            self.of = self.of.model_copy(update={"stable": self.of.candidate, "candidate": self.of.stable})
        elif what.endswith("goes"):
            self.names.discard("old" if what.startswith("stable") else "new")
        elif what in ("candidate comes", "stable comes"):
            self.names.add("old" if what.startswith("stable") else "new")
        elif what == "candidate is made anew":
            self.uid, self.ready = self.uid + 1, 0
        else:
            self.said = {"waiting": "Waiting", "passing": "Pass", "failing": "Fail"}.get(what, self.said)
            self.pods = 0 if what == "the stable loses its pods" else self.pods + (what == "the stable grows")
            self.ready = {
                "a pod is lost": max(0, self.ready - 1),
                "all pods are lost": 0,
                "a pod comes": self.ready + 1,
                "all pods come": 30,
            }.get(what, self.ready)
            self.now -= timedelta(seconds=90 if what == "the clock goes back" else 0)

    def scale(self) -> None:
        """The recommender gives both backends the pods that they are to keep."""
        floors = capacity.floors(self.of, self.stored, self.now)
        self.pods, self.ready = max(self.pods, floors.get("old", 0)), max(self.ready, floors.get("new", 0))

    def look(self, what: str) -> Seen:
        """What the operator sees."""
        state = self.stored.state if self.stored else None
        applied = None
        if state is not None and self.routers == (state.weight, state.mirror) and what != "no routers":
            applied = state.weight
        ended = state is not None and self.now - moment(state.judged or state.started) >= timedelta(
            seconds=30
        )
        here = {"uid-old": self.pods, f"uid-{self.uid}": self.ready}
        both = {}
        for role, name in (("stable", self.of.stable), ("candidate", self.of.candidate)):
            uid = "uid-old" if name == "old" else f"uid-{self.uid}"
            exists = name in self.names
            ready = here[uid] if exists else 0
            both[role] = {"exists": exists, "uid": uid, "ready": ready, "replicas": ready, "most": self.most}
        judged = verdicts(self.of, self.said) if ended else None
        return seen(now=self.now, applied=applied, verdicts=judged, action=self.action, **both)


def look_at(world: World, what: str) -> Advance:
    """One look, with all that must hold of it."""
    before, of, look = world.stored, world.of, world.look(what)
    made = machine.advance(of, before, look)
    after, state = made.release, made.release.state
    assert state.reason in standing.TRUTHS
    assert state.message
    within_capacity(of, look, state)
    if before is not None:
        told_once(before, made)
        if (state.started, state.candidate) == (before.state.started, before.state.candidate):
            no_jump(world, look, before, after)
    still(of, made, look)
    return made


def within_capacity(of: Strategy, look: Seen, state: ReleaseState) -> None:
    """No weight above what ready pods allow, but where there is no stable, or no other any more."""
    if state.reason == "StableNotReady":
        assert (look.stable.ready, state.mirror, state.phase) == (0, 0, "RolledBack")
        assert look.candidate.ready
    elif state.phase == "RolledBack":
        assert (state.weight, state.mirror) == (0, 0)
    elif state.phase == "Promoted":
        assert state.weight == 100
    elif look.stable.exists:
        assert state.weight <= min(state.target, capacity.allowed(look.candidate.ready, state.replicas))
        assert state.mirror == 0 or (state.target == 0 and look.candidate.ready)


def told_once(before: Release, made: Advance) -> None:
    """An Event for each transition, and none without."""
    after, reasons = made.release, [event.reason for event in made.events]
    assert len(reasons) == len(set(reasons))
    moved = (before.state.phase, before.step) != (after.state.phase, after.step)
    begun = before.state.started != after.state.started
    weighed = (before.state.weight, before.state.mirror) != (after.state.weight, after.state.mirror)
    if moved or weighed:
        assert reasons
    if not (moved or begun or weighed or before.state.reason != after.state.reason):
        assert set(reasons) <= {"ActionRefused", "ActionPending", "StepsEdited", "ReleaseStarted"}


def no_jump(world: World, look: Seen, before: Release, after: Release) -> None:
    """A step follows the one before it once the routers have its weight; a target is the step's own."""
    if after.state.phase in ("Promoted", "RolledBack") or before.state.phase in ("Promoted", "RolledBack"):
        return
    if after.state.target not in (before.state.target, before.state.weight):
        assert after.state.target == steps.target(world.of, after.step)
    asked = (look.action or "").partition("@")[0] if look.action != before.state.handled else ""
    edited = before.state.steps != steps.fingerprint(world.of)
    if after.step != before.step and not edited and asked not in DISTURBS:
        assert after.step == before.step + 1
        assert before.state.weight == steps.target(world.of, before.step) == look.applied


def still(of: Strategy, made: Advance, look: Seen) -> None:
    """The same look again: what has a new weight goes no further, and soon nothing is left to be done."""
    release = made.release
    for number in range(12):
        again = machine.advance(of, release, look)
        if number == 0 and look.applied not in (None, release.state.weight):
            assert again.release.step == release.step
        if again.release == release:
            assert again.events == ()
            return
        release = again.release
        look = replace(look, applied=None)
    raise AssertionError(release)


def keep(world: World, made: Advance, what: str) -> None:
    """Write the status as the API has it, unless the operator dies before; then the routers take it up."""
    if what == "crash":
        return
    kept = ReleaseState.model_validate(made.release.state.document())
    world.stored = replace(made.release, state=kept)
    if what != "routers are slow":
        world.routers = (kept.weight, kept.mirror)


@given(
    strategies(),
    strategies(),
    st.integers(1, 13),
    st.sampled_from([20, None]),
    st.lists(st.tuples(st.sampled_from(HAPPENS), st.integers(0, 40)), min_size=10, max_size=60),
)
def test_whatever_happens_a_release_keeps_its_promises_and_comes_to_an_end(
    of: Strategy, edited: Strategy, pods: int, most: int | None, story: list[tuple[str, int]]
) -> None:
    """Crashes, lost pods, edits, deletions, actions, clocks that go back; then it ends, or waits."""
    world = World(of=of, edited=edited, pods=pods, most=most)
    for what, seconds in story:
        world.now += timedelta(seconds=seconds)
        world.happen(what)
        keep(world, look_at(world, what), what)
    for what in ("candidate comes", "stable comes", "passing"):
        world.happen(what)
    for _ in range(150):
        world.now += timedelta(seconds=5)
        keep(world, look_at(world, "nothing"), "nothing")
        world.scale()
        if world.stored and world.stored.state.phase != "Progressing":
            break
    assert world.stored is not None
    state = world.stored.state
    assert state.phase != "Progressing", state
    assert state.replicas <= 150
    if state.phase == "Paused":
        assert state.reason in ("Paused", "AwaitingPromotion", "AnalysisFailed")


@given(
    strategies(metrics=()), st.lists(st.sampled_from(["nothing", "crash", "routers are slow"]), max_size=40)
)
def test_the_routers_get_every_weight_in_its_order(of: Strategy, story: list[str]) -> None:
    """With crashes, slow routers, and somebody who promotes what waits: each step's weight, none left out."""
    world = World(of=of, edited=of, pods=10, ready=10)
    had = [0]
    for what in story + ["nothing"] * 120:
        world.now += timedelta(seconds=10)
        if world.stored is not None and world.stored.state.phase == "Paused":
            world.happen("promote")
        keep(world, look_at(world, what), what)
        if world.routers is not None and world.routers[0] != had[-1]:
            had.append(world.routers[0])
    asked = [0, *[step.set_weight for step in of.steps if step.set_weight is not None], 100]
    assert had == [
        weight for number, weight in enumerate(asked) if number == 0 or weight != asked[number - 1]
    ]
