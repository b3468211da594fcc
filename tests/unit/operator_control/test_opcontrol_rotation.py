"""When keys are made and replaced: no pod ever gets a certificate before the authority that signed it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_operator.config import SHORTEST_AUTHORITY, SHORTEST_CERTIFICATE, parse
from penstock_operator.control.rotation import (
    BACKDATED,
    DAY,
    Issued,
    Keyring,
    Lifetimes,
    Step,
    next_step,
    replaced_by,
)
from penstock_operator.errors import ConfigError

NAMES = ("operator.ns.svc",)
LIVES = Lifetimes(authority=300 * DAY, certificate=30 * DAY, overlap=3600.0)
NOW = 1000 * DAY


def issued(word: str, *, made: float = NOW, life: float, names: tuple[str, ...] = ()) -> Issued:
    return Issued(
        certificate=f"{word}\n".encode(),
        key=b"k",
        begins=made - BACKDATED,
        ends=made + life,
        names=names,
    )


def keyring(made: float = NOW, **changes: object) -> Keyring:
    keyring = Keyring(
        current=issued("a", made=made, life=LIVES.authority),
        serving=issued("s", made=made, life=LIVES.certificate, names=NAMES),
        changed=made,
    )
    return replace(keyring, **changes)  # type: ignore[arg-type]


B = issued("b", life=LIVES.authority)

TABLE = [
    ("nothing there", None, "", NOW, Step.MAKE),
    ("fresh", keyring(), "", NOW, None),
    ("certificate at two thirds, not yet", keyring(), "", NOW + 20 * DAY - 60, None),
    ("certificate beyond two thirds", keyring(), "", NOW + 20 * DAY + 60, Step.RENEW),
    ("certificate ended, the operator was away", keyring(), "", NOW + 40 * DAY, Step.RENEW),
    ("other names", keyring(serving=issued("s", life=LIVES.certificate, names=("x",))), "", NOW, Step.RENEW),
    (
        "authority beyond two thirds",
        keyring(serving=issued("s", made=NOW + 200 * DAY, life=LIVES.certificate, names=NAMES)),
        "",
        NOW + 201 * DAY,
        Step.ANNOUNCE,
    ),
    ("authority ended, the operator was away", keyring(), "", NOW + 301 * DAY, Step.MAKE),
    ("asked for", keyring(), "please", NOW, Step.ANNOUNCE),
    ("asked for before", keyring(asked="please"), "please", NOW, None),
    ("the asking was taken back", keyring(asked="please"), "", NOW, None),
    ("announced a moment ago", keyring(next=B), "", NOW + 3599, None),
    ("asked for while it is announced", keyring(next=B), "again", NOW + 3599, None),
    ("announced long enough", keyring(next=B), "", NOW + 3600, Step.SWITCH),
    ("announced, and the old one ends", keyring(next=B, changed=NOW + 300 * DAY), "", NOW + 300 * DAY,
     Step.SWITCH),
    ("switched a moment ago", keyring(previous=B), "", NOW + 3599, None),
    ("asked for while the old one is trusted", keyring(previous=B), "again", NOW + 3599, None),
    ("switched long enough ago", keyring(previous=B), "", NOW + 3600, Step.RETIRE),
    ("our clock is before the beginning", keyring(), "", NOW - 3 * DAY, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "keyring", "asked", "now", "step"), TABLE, ids=[str(row[0]).replace(" ", "-") for row in TABLE]
)
def test_what_is_due(case: str, keyring: Keyring | None, asked: str, now: float, step: Step | None) -> None:
    """One step at a time, each with its cause."""
    assert next_step(keyring, names=NAMES, lifetimes=LIVES, asked=asked, now=now) == step


def done(step: Step, before: Keyring | None, now: float, count: int, lives: Lifetimes = LIVES) -> Keyring:
    """What the shell does, with words for certificates."""
    new = issued(f"ca-{count}", made=now, life=lives.authority)
    if before is None or step is Step.MAKE:
        return keyring(now, current=new, serving=signed(new, now, lives))
    if step is Step.ANNOUNCE:
        return replace(before, next=new, changed=now)
    if step is Step.SWITCH:
        assert before.next is not None
        return replace(
            before,
            current=before.next,
            serving=signed(before.next, now, lives),
            next=None,
            previous=before.current,
            changed=now,
        )
    if step is Step.RETIRE:
        return replace(before, previous=None)
    return replace(before, serving=signed(before.current, now, lives))


def signed(authority: Issued, now: float, lives: Lifetimes) -> Issued:
    certificate = issued(
        "by " + authority.certificate.decode().strip(), made=now, life=lives.certificate, names=NAMES
    )
    return replace(certificate, ends=min(certificate.ends, authority.ends))


@given(
    pauses=st.lists(
        st.sampled_from([10.0, 600.0, 3600.0, DAY, 9 * DAY]) | st.floats(1.0, 9 * DAY), max_size=300
    )
)
def test_whoever_heard_within_an_overlap_trusts_what_is_shown(pauses: list[float]) -> None:
    """Whatever the times of the looks, for years.

    The certificate is valid; its authority was among those told `overlap` ago, and is among those told now.
    """
    now, keyring, shown = NOW, None, [(0.0, b"")]
    for count, pause in enumerate(pauses):
        while (step := next_step(keyring, names=NAMES, lifetimes=LIVES, asked="", now=now)) is not None:
            assert count == 0 or step is not Step.MAKE
            keyring = done(step, keyring, now, count)
            shown.append((now, keyring.authorities))
        assert keyring is not None
        signer = keyring.serving.certificate.removeprefix(b"by ")
        assert signer == keyring.current.certificate
        assert signer in shown[-1][1]
        known = [what for at, what in shown if at <= now - LIVES.overlap]
        assert len(known) < 2 or signer in known[-1]
        assert keyring.serving.ends > now
        now += pause


@pytest.mark.parametrize(
    ("authority", "certificate"),
    [(300 * DAY, 30 * DAY), (30 * DAY, 30 * DAY), (2 * DAY, 30 * DAY), (9 * DAY, DAY)],
)
def test_it_is_told_by_when_a_certificate_is_replaced(authority: float, certificate: float) -> None:
    """Looked at every ten minutes it is, to within three looks; and that is well before its end."""
    lives = Lifetimes(authority=authority, certificate=certificate, overlap=3600.0)
    keyring = done(Step.MAKE, None, NOW, 0, lives)
    now, looks = NOW, 0
    while now < NOW + 3 * authority:
        while (step := next_step(keyring, names=NAMES, lifetimes=lives, asked="", now=now)) is not None:
            looks += 1
            keyring = done(step, keyring, now, looks, lives)
        by = replaced_by(keyring, lifetimes=lives)
        assert now - 1800.0 <= by
        assert keyring.serving.ends - by >= 0.2 * min(authority, certificate)
        now += 600.0
    assert looks > 3


def test_the_authorities_that_are_told_are_one_file() -> None:
    """The one in use first; keys never."""
    assert keyring(next=B, previous=issued("c", life=1.0)).authorities == b"a\nb\nc\n"


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--authority-lifetime", "0s", "--authority-lifetime: expected at least 1h, found"),
        ("--authority-lifetime", "59m", "--authority-lifetime: expected at least 1h, found"),
        ("--certificate-lifetime", "0s", "--certificate-lifetime: expected at least 10m, found"),
        ("--certificate-lifetime", "9m59s", "--certificate-lifetime: expected at least 10m, found"),
        ("--authority-overlap", "1461h", "--authority-overlap: expected at most a sixth"),
        ("--authority-lifetime", "876001h", "--authority-lifetime: expected at most 876000h, found"),
        (
            "--certificate-lifetime",
            "9" * 400 + "h",
            "--certificate-lifetime: expected at most 876000h, found",
        ),
        ("--certificate-lifetime", "1d", "--certificate-lifetime: "),
        ("--authority-overlap", "5256000001ms", "--authority-overlap: expected at most a sixth"),
    ],
)
def test_lives_too_short_for_a_rotation_are_refused(flag: str, value: str, message: str) -> None:
    """With a life of 0s each step is followed by another, for ever; the message names the flag."""
    with pytest.raises(ConfigError, match=message):
        parse([flag, value])


def test_with_the_shortest_lives_a_rotation_comes_to_its_end() -> None:
    """Each of a day's looks finds something shown that is valid, and ends."""
    lives = parse(
        ["--authority-lifetime", SHORTEST_AUTHORITY, "--certificate-lifetime", SHORTEST_CERTIFICATE,
         "--authority-overlap", "10m"]
    ).lifetimes  # fmt: skip
    keyring: Keyring | None = None
    for now in range(0, 86_400, 10):
        for _ in range(10):
            step = next_step(keyring, names=NAMES, lifetimes=lives, asked="", now=float(now))
            if step is None:
                break
            keyring = done(step, keyring, float(now), now, lives)
        assert step is None
        assert keyring is not None
        assert keyring.serving.ends > now
