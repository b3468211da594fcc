"""Runs the autoscaler: computes a recommendation, and writes it through the backend's ``/scale``.

With `mode: External` it writes nothing: another scaler reads the recommendation.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock_operator.api import ModelBackend
from penstock_operator.api.backendstatus import ScalingEntry
from penstock_operator.autoscaling import (
    Holders,
    Recommendation,
    ScalerState,
    Target,
    objective_of,
    recommend,
    target_of,
)
from penstock_operator.autoscaling.capacity import capacity, follow
from penstock_operator.errors import ClusterError, Rejected
from penstock_operator.kinds import BACKEND
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile import release, router
from penstock_operator.reconcile.context import ReconcileContext, Scaled
from penstock_operator.reconcile.scale_owners import OtherScalers, owned_by_others, owns_replicas
from penstock_operator.status import HISTORY, refusal
from penstock_operator.status.endpoint import router_ready
from penstock_operator.status.pods import is_ready, living
from penstock_operator.store import ObjectKey, owners_of_replicas

INTERVAL = 2.0
"""Seconds between two looks at a backend."""


@dataclass(slots=True)
class _Asked:
    """A change that was asked for, until the store has another number than the one before it.

    `answered` is true once the apiserver has confirmed it, and it is to be reported. If it is asked for again
    while the store is behind, it is the same change.
    """

    change: ScalingEntry
    answered: bool = False


class Scaler:
    """Scales every backend that has autoscaling."""

    def __init__(self, ctx: ReconcileContext) -> None:
        self._ctx = ctx
        self._states: dict[ObjectKey, ScalerState] = {}
        self._asked: dict[ObjectKey, _Asked] = {}
        self._others: dict[ObjectKey, OtherScalers] = {}

    def forget(self, key: ObjectKey) -> None:
        """Drop what is remembered of a backend that is gone; another of its name starts with nothing."""
        self._states.pop(key, None)
        self._others.pop(key, None)
        self._asked.pop(key, None)

    async def look(self, key: ObjectKey) -> float | None:
        """Scale one backend if its load asks for it.

        Returns:
            Seconds until the next look; None if the backend has neither autoscaling nor an objective.

        Raises:
            ClusterError: the write failed.
        """
        ctx = self._ctx
        stored = ctx.store.get(BACKEND, key.namespace, key.name)
        backend = ctx.view.backend(key.namespace, key.name)
        target = self._target(backend) if backend is not None else None
        if stored is None or backend is None or target is None:
            return self._unscaled(key, backend if stored is not None else None)
        now = ctx.clock.time()
        window = ctx.reports.window(key.namespace, key.name)
        others = self._others.setdefault(key, OtherScalers())
        current = others.number(stored, backend.spec.replicas)
        recommendation, state = recommend(
            target,
            current=current,
            pods=window.view(self._pods(key), now, keep=target.stable_window),
            state=self._states.get(key, ScalerState()),
            now=now,
            holds=window.holds(now),
            holders=self._holders(key) if target.zero_after is not None else Holders(),
            startup=window.startup,
        )
        self._states[key] = state
        scaled = ctx.memory.scaled.setdefault(key, Scaled())
        asked_for = self._seen(key, scaled, stored, current)
        before = (scaled.recommendation, scaled.foreign)
        scaled.recommendation = recommendation
        scaled.item_seconds, scaled.unreachable = recommendation.item_seconds, recommendation.unreachable
        external = backend.spec.autoscaling is not None and backend.spec.autoscaling.mode == "External"
        if external:
            # A 0 of the external scaler was not set by hand, also when `mode` is no longer External.
            self._others.pop(key, None)
        scaled.foreign = None if external else others.yields_to(stored, current, now, asked=asked_for)
        if (
            not external
            and scaled.foreign is None
            and (recommendation.replicas != current or (current > 0 and owned_by_others(stored)))
        ):
            # The first write of the current value makes us a co-owner: a client that then removes `replicas`
            # from its manifest does not throw the backend back to the default. NB: an apply of 0, or of what
            # nobody owns, is answered 500, as one that changes the scale (see `kube.cluster`).
            asked = self._ask(key, recommendation, current)
            try:
                await ctx.cluster.apply_scale(
                    BACKEND, key.namespace, key.name, recommendation.replicas, uid=backend.metadata.uid
                )
            except ClusterError as error:
                if asked is not None and not asked.answered and 400 <= error.status < 500:
                    del self._asked[key]  # it was not made; with other errors, the store will show
                if isinstance(error, Rejected):
                    scaled.refused = refusal(f"the scale of {key}", error.status, error.message)
                    ctx.enqueue(key, 0.0)
                raise
            scaled.refused = None
            others.took_over(stored, recommendation.replicas, now)
            ctx.observer.wrote("scale", BACKEND.kind)
            if asked is not None:
                self._made(key, scaled, asked)
            # NB: the answer is a Scale, not the backend: until the watch brings that, `others` has it.
            ctx.enqueue(key, 0.0)
        elif before[0] is None or _face(before) != _face((recommendation, scaled.foreign)):
            ctx.enqueue(key, 0.0)
        return INTERVAL

    def _unscaled(self, key: ObjectKey, backend: ModelBackend | None) -> float | None:
        """Forget the scaling of a backend without autoscaling, but look whether it can keep its objective."""
        ctx, state = self._ctx, self._states.get(key, ScalerState())
        self.forget(key)
        last = ctx.memory.scaled.pop(key, None)
        if backend is None:
            return None
        objective = objective_of(backend, self._ctx.view.batching(backend))
        watched = objective.latency is not None and not backend.spec.suspend
        known = Scaled() if last is None else last
        before = (known.recommendation is not None, known.unreachable)
        known.recommendation = known.foreign = known.refused = known.item_seconds = None
        known.unreachable = False
        if watched:
            now = ctx.clock.time()
            pods = ctx.reports.window(key.namespace, key.name).view(self._pods(key), now)
            curve = follow(state.curve, pods, now, most=objective.max_batch_size)
            self._states[key] = ScalerState(curve=curve)
            able = capacity(objective, curve, pods, now)
            known.item_seconds, known.unreachable = able.item_seconds, not able.keeps_objective
        if watched or known.unpublished:
            ctx.memory.scaled[key] = known
        if before != (False, known.unreachable):
            ctx.enqueue(key, 0.0)
        return INTERVAL if watched else None

    def _pods(self, key: ObjectKey) -> dict[str, bool]:
        """The backend's living pods, and whether each is ready."""
        pods = living(self._ctx.view.backend_pods(key.namespace, key.name))
        return {pod["metadata"]["name"]: is_ready(pod) for pod in pods}

    def _target(self, backend: ModelBackend) -> Target | None:
        now = self._ctx.clock.now()
        floor = release.floor(self._ctx.view, backend, now)
        return target_of(backend, self._ctx.view.batching(backend), now, floor)

    def _holders(self, key: ObjectKey) -> Holders:
        """Return the routers' readiness to hold the backend's requests while it has no pod."""
        ctx, namespace = self._ctx, key.namespace
        plans = ctx.view.plan(namespace).endpoints
        senders = [
            name
            for name, plan in sorted(plans.items())
            if any(share.name == key.name and (share.weight > 0 or share.match) for share in plan.backends)
        ]
        # An endpoint can have routers of its own.
        readiness = (router_ready(name, router.serving(ctx, namespace, name)) for name in senders)
        return Holders(
            named=bool(senders),
            missing=next((condition.message for condition in readiness if condition.status != "True"), ""),
            awaited=any(
                key.name == plan.waits_for or (key.name in plan.untried and name not in senders)
                for name, plan in plans.items()
            ),
        )

    def _ask(self, key: ObjectKey, recommendation: Recommendation, current: int) -> _Asked | None:
        """Record the change that is asked for now, if it is one."""
        if recommendation.replicas == current:
            return None
        asked = self._asked.get(key)
        if asked is None or (asked.change.from_, asked.change.to) != (current, recommendation.replicas):
            asked = self._asked[key] = _Asked(
                ScalingEntry(
                    time=self._ctx.now(), from_=current, to=recommendation.replicas,
                    reason=recommendation.message, inputs=recommendation.inputs,
                )
            )  # fmt: skip
        return asked

    def _seen(self, key: ObjectKey, scaled: Scaled, stored: Obj, current: int) -> bool:
        """Record a change that was made although its answer was lost, if the store's number shows it.

        Returns:
            Whether the store's number is new, and the one that was asked for.
        """
        asked = self._asked.get(key)
        if asked is None or current == asked.change.from_:
            return False
        del self._asked[key]
        # NB: a 0, and what is written after it, has no owner.
        made = current == asked.change.to and (owns_replicas(stored) or not owners_of_replicas(stored))
        if made:
            self._made(key, scaled, asked)
        return made

    def _made(self, key: ObjectKey, scaled: Scaled, asked: _Asked) -> None:
        """Record that a change was made; it is reported once."""
        if asked.answered:
            return
        asked.answered = True
        change = asked.change
        scaled.unpublished = [*scaled.unpublished, change][-HISTORY:]
        self._ctx.log("scaled", key=str(key), current=change.from_, replicas=change.to, text=change.reason)
        self._ctx.enqueue(key, 0.0)


def _face(seen: tuple[object, object]) -> tuple[object, ...]:
    recommendation, foreign = seen
    return (
        getattr(recommendation, "replicas", None),
        getattr(recommendation, "verdict", None),
        getattr(recommendation, "metrics_available", None),
        getattr(getattr(recommendation, "inputs", None), "silent_pods", None),
        getattr(recommendation, "unreachable", None),
        foreign,
    )
