"""Event streams of any server, as handles read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import UpstreamError
from penstock.handles.stream import MAX_EVENT_BYTES, Events

NOISE = st.lists(st.sampled_from([": ping - 2026", ":", "retry: 3000", "id: 1", "id", "x: y"]), max_size=2)
EVENT = st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=3)


@given(
    st.lists(st.tuples(NOISE, st.sampled_from([None, "", "token", "x:y"]), EVENT, st.booleans())),
    st.lists(st.sampled_from(["\n", "\r\n", "\r"]), min_size=1),
    st.booleans(),
    st.data(),
)
def test_an_event_stream_of_any_server_is_read_as_the_standard_says(
    events: list[tuple[list[str], str | None, list[str], bool]],
    ends: list[str],
    bom: bool,
    data: st.DataObject,
) -> None:
    """Lines end in three ways, bytes are cut anywhere; comments and other fields are no events."""
    lines: list[str] = []
    for noise, name, texts, space in events:
        lines += [*noise, *([] if name is None else [f"event: {name}"])]
        lines += [f"data: {text}" if space or text.startswith(" ") else f"data:{text}" for text in texts] + [
            ""
        ]
    spelled = "\ufeff" if bom else ""
    for number, line in enumerate(lines):
        end = ends[number % len(ends)]
        spelled += line + ("\r\n" if end == "\n" and not line and spelled.endswith("\r") else end)
    raw = spelled.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)))))
    reader = Events("there")
    found = [
        event
        for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True)
        if start < stop
        for event in reader.feed(raw[start:stop])
    ]
    expected = [((name or "").encode(), "\n".join(texts).encode()) for _, name, texts, _ in events if texts]
    assert found == expected
    assert not reader.cut
    reader.feed(b"data: 1")
    assert reader.cut


def test_comments_are_no_part_of_an_events_size() -> None:
    reader = Events("there")
    for _ in range(3):
        assert reader.feed(b": ping" + b"." * (MAX_EVENT_BYTES // 2) + b"\n") == []
    with pytest.raises(UpstreamError, match="at most"):
        reader.feed(b"data: " + b"." * MAX_EVENT_BYTES)
