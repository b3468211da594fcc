"""Decides when the report channel's keys are made and replaced. Pure; times in seconds since the epoch.

An authority (CA) signs the certificate that the control server shows. A new authority is sent to every pod
`overlap` before a certificate that it signed is shown, and the old one is trusted for `overlap` afterwards::

    MAKE ─► current ──two thirds of its life, or asked for──► ANNOUNCE: current and next are trusted
              ▲                                                   │ after `overlap`
              │                                                   ▼
              └── RETIRE ◄── after `overlap` ── SWITCH: next becomes current, the old one is still trusted

So a pod that got either set within `overlap` can check the certificate that is shown, and no pod has to
restart. Certificates begin a day before they are made and are replaced with a third of their life left:
clocks may differ by that much.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

DAY = 86_400.0

BACKDATED = DAY
"""Seconds by which certificates begin before they are made, for clocks that are behind."""

_LEFT = 1 / 3
"""Share of its life that is left when a certificate is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """The lifetimes of keys, in seconds.

    Args:
        certificate: the life of the certificate that the server shows.
        overlap: time from announcing an authority to using it, and from then to retiring the old one; at
            least the minutes in which a ConfigMap reaches all pods.
    """

    authority: float = 365 * DAY
    certificate: float = 30 * DAY
    overlap: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A certificate and its private key, both PEM.

    Args:
        key: its private key; empty for an authority that signs no more.
        names: its DNS names and addresses; none for an authority.
    """

    certificate: bytes
    key: bytes
    begins: float
    ends: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """All keys of the report channel.

    Args:
        current: the authority that signed `serving`.
        next: an authority that every pod gets before it signs anything.
        previous: an authority that signs no more but is still trusted.
        changed: when `next` was announced or `current` took over.
    """

    current: Issued
    serving: Issued
    next: Issued | None = None
    previous: Issued | None = None
    changed: float = 0.0
    asked: str = ""

    @property
    def authorities(self) -> bytes:
        """The certificates of all authorities that are trusted, PEM, the one in use first."""
        return b"".join(
            authority.certificate
            for authority in (self.current, self.next, self.previous)
            if authority is not None
        )


class Step(enum.Enum):
    """A step of the rotation."""

    MAKE = "new keys made"
    ANNOUNCE = "a new authority is announced"
    SWITCH = "the new authority signs"
    RETIRE = "the old authority is not trusted any more"
    RENEW = "certificate renewed"


def next_step(
    keyring: Keyring | None, *, names: tuple[str, ...], lifetimes: Lifetimes, asked: str, now: float
) -> Step | None:
    """Return the one step that is due now; None if there is none. Call again after each step.

    Args:
        asked: the word by which a user requests a rotation: a new word begins one; "" requests none.
    """
    if keyring is None:
        return Step.MAKE
    waited = now - keyring.changed >= lifetimes.overlap
    current, serving = keyring.current, keyring.serving
    if keyring.next is not None:
        if waited or current.ends <= now:
            return Step.SWITCH
    elif current.ends <= now:
        return Step.MAKE  # the operator was away for so long that no pod can trust it, whatever it does
    elif keyring.previous is not None and waited:
        return Step.RETIRE
    elif keyring.previous is None and (asked not in ("", keyring.asked) or _old(current, now)):
        return Step.ANNOUNCE
    # NB: a certificate never outlives its authority, so with an old one renewing gains nothing.
    renewable = min(now + lifetimes.certificate, current.ends) > serving.ends
    if serving.names != names or (_old(serving, now) and renewable):
        return Step.RENEW
    return None


def replaced_by(keyring: Keyring, *, lifetimes: Lifetimes) -> float:
    """The time by which the shown certificate will have been replaced, if nothing prevents it."""
    current, serving = keyring.current, keyring.serving
    if serving.ends < current.ends:
        return _old_at(serving)
    # It ends with its authority: the next authority's replaces it, once that has been sent for `overlap`; and
    # no next one is sent while the previous one is trusted.
    return min(serving.ends, _old_at(current) + 2 * lifetimes.overlap)


def _old(issued: Issued, now: float) -> bool:
    return now > _old_at(issued)


def _old_at(issued: Issued) -> float:
    return issued.ends - (issued.ends - issued.begins - BACKDATED) * _LEFT
