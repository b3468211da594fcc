"""Documents, headers, durations, errors, flags: what each takes, refuses and says."""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_wire import headers, process
from penstock_wire.control import documents, report, router_settings, settings, settings_source
from penstock_wire.control.settings_source import SettingsSource
from penstock_wire.durations import format_ms, parse_ms
from penstock_wire.errors import DocumentError, PenstockError, Reason


class TestSettings:
    def test_defaults_are_those_of_the_policy(self):
        batching = settings.decode(b'{"v": 1}').batching
        assert (batching.max_batch_size, batching.max_concurrent_batches, batching.max_queued_items) == (
            32,
            1,
            None,
        )

    def test_a_document_survives_its_own_bytes_and_unknown_fields(self):
        batching = settings.Batching(max_batch_size=7, batch_key_headers=("x-a",))
        document = settings.Settings(version=3, backend="b", batching=batching)
        assert settings.decode(settings.encode(document)) == document
        more = json.loads(settings.encode(document)) | {"later": {"a": 1}}
        assert settings.decode(json.dumps(more).encode()) == document

    def test_people_may_write_yaml_and_leave_everything_out(self):
        decoded = settings.decode(b"batching:\n  maxBatchSize: 4\n", text=True)
        assert decoded.batching.max_batch_size == 4
        assert settings.decode(b"{}", text=True, by_hand=True) == settings.Settings()
        with pytest.raises(DocumentError, match="found an empty document"):
            settings.decode(b"# nothing\n", text=True, by_hand=True)

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"{", "expected JSON"),
            (b"[]", "expected an object, found list"),
            (b"{}", "expected v: 1, found v: None"),
            (b'{"v":2}', "expected v: 1, found v: 2"),
            (b'{"v":1,"batching":{"maxBatchSize":0}}', r"\$\.batching\.maxBatchSize"),
            (b'{"v":1,"batching":{"maxBatchSize":"4"}}', r"\$\.batching\.maxBatchSize"),
            (b'{"v":1,"batching":{"onBatchError":"No"}}', r"\$\.batching\.onBatchError"),
        ],
    )
    def test_a_document_that_cannot_be_used_says_where(self, data: bytes, message: str):
        with pytest.raises(DocumentError, match=message):
            settings.decode(data)

    @pytest.mark.parametrize("data", [b"a: 2001-99-99", b"a: !!int x", b"a: !!timestamp x", b"a: !!float x"])
    def test_a_value_that_yaml_cannot_make_is_refused_as_any_other(self, data: bytes):
        with pytest.raises(DocumentError, match="expected JSON or YAML"):
            settings.decode(data, text=True)

    @pytest.mark.parametrize("value", [1e-7, "\x7f", "no", {"a": "1:30"}, "2001-01-01", [1, 2.5, None, True]])
    def test_json_is_read_as_json_also_where_yaml_may_stand(self, value: object):
        """What the operator writes and mounts: YAML makes a text of 1e-7, and refuses what JSON admits."""
        document = settings.Settings(version=1, user_config=value)
        assert settings.decode(settings.encode(document), text=True) == document

    @pytest.mark.parametrize(
        "data", [b'{"batching":{"maxBatchSize":4,"maxBatchSize":8}}', b"backend: a\nbackend: b"]
    )
    def test_a_member_that_stands_twice_by_hand_is_refused(self, data: bytes):
        """The user sees one of the two, and the other would count."""
        with pytest.raises(DocumentError, match=r"once, found '(maxBatchSize|backend)' again"):
            settings.decode(data, text=True, by_hand=True)

    def test_json_never_costs_the_time_of_a_yaml_parser(self, monkeypatch: pytest.MonkeyPatch):
        def parse(_data: bytes) -> object:
            raise AssertionError("asked")

        monkeypatch.setattr(documents.yaml_text, "read", parse)
        assert settings.decode(b' {"backend": "b"} ', text=True).backend == "b"
        assert settings.decode(b"null", text=True) == settings.Settings()
        with pytest.raises(DocumentError, match="expected JSON or YAML"):
            settings.decode(b'{"userConfig": ' + b"[" * 5000 + b"]" * 5000 + b"}", text=True)
        with pytest.raises(AssertionError, match="asked"):
            settings.decode(b"backend: b", text=True)

    def test_router_settings_keep_the_same_rules(self):
        document = router_settings.RouterSettings(endpoints=(router_settings.Endpoint(name="e", port=20000),))
        assert router_settings.decode(router_settings.encode(document)) == document
        assert document.endpoints[0].effective_route == "/e"


class TestReports:
    def test_a_report_survives_its_own_bytes(self):
        document = report.SidecarReport(
            pod="p", uid="u", seq=1, state="ready", totals=report.Totals(refused={"queue_full": 2})
        )
        assert report.decode_sidecar(report.encode(document)) == document
        router = report.RouterReport(
            pod="p", uid="u", seq=1, state="ready", endpoints={"e": report.EndpointReport(listening=True)}
        )
        assert report.decode_router(report.encode(router)) == router

    @pytest.mark.parametrize(
        "data", [b"", b"[]", b"{}", b'{"v":1,"pod":"p","uid":"u","seq":1,"state":"odd"}']
    )
    def test_a_report_that_cannot_be_used_is_refused(self, data: bytes):
        with pytest.raises(DocumentError):
            report.decode_sidecar(data)

    def test_settings_in_an_answer_are_the_documents_own_bytes(self):
        answer, raw = report.decode_answer(b'{"v":1,"nextReportMs":500,"settings":{"v":1, "version":2}}')
        assert (answer.next_report_ms, raw) == (500, b'{"v":1, "version":2}')
        assert report.decode_answer(b'{"v":1}')[1] is None
        assert report.decode_answer(b'{"v":1,"settings":null}')[1] is None
        with pytest.raises(DocumentError, match="found v: 9"):
            report.decode_answer(b'{"v":9}')


class TestHeaders:
    def test_hop_by_hop_fields_and_those_that_connection_names_go(self):
        fields = (
            (b"connection", b"close, X-Private"),
            (b"x-private", b"1"),
            (b"transfer-encoding", b"chunked"),
            (b"content-length", b"5"),
            (b"x-kept", b"1"),
            (b"x-kept", b"2"),
        )
        assert headers.end_to_end(fields) == ((b"x-kept", b"1"), (b"x-kept", b"2"))
        assert headers.get(fields, b"x-kept") == b"1"
        assert headers.get(fields, b"x-none") is None
        assert headers.without(fields, [b"x-kept", b"connection"]) == fields[1:4]

    @pytest.mark.parametrize(
        ("sent", "expected"),
        [
            (b"250", 250),
            (b"0", 0),
            (b"-1", -1),
            (b"1.5", -1),
            (b"", -1),
            (b"9" * 13, 10**12),
            (b"9" * 5000, 10**12),
            (b"1s", -1),
        ],
    )
    def test_a_timeout_that_cannot_be_read_is_negative(self, sent: bytes, expected: int | None):
        assert headers.timeout_ms(((headers.TIMEOUT_MS, sent),)) == expected


class TestDurations:
    @given(st.integers(0, 10**9))
    def test_every_duration_reads_back(self, milliseconds: int):
        assert parse_ms(format_ms(milliseconds)) == milliseconds

    @pytest.mark.parametrize(
        ("text", "expected"), [("1m30s", 90_000), ("0s", 0), ("250ms", 250), ("1h", 3_600_000)]
    )
    def test_they_are_written_as_users_write_them(self, text: str, expected: int):
        assert parse_ms(text) == expected

    @pytest.mark.parametrize("text", ["", "5", "s", "1.5s", "-1s", "1 s", "1d"])
    def test_others_are_refused(self, text: str):
        with pytest.raises(ValueError, match="expected a duration"):
            parse_ms(text)


class TestErrors:
    @pytest.mark.parametrize("reason", list(Reason))
    def test_an_answer_says_the_same_in_each_place(self, reason: Reason):
        answer = PenstockError(reason, "expected x, found y").response(request_id="r", backend="b", pod="p")
        document = json.loads(answer.body)
        assert document == {
            "type": f"https://penstock.dev/errors/{reason}",
            "title": reason.headline,
            "status": reason.status,
            "detail": "expected x, found y",
            "reason": reason.value,
            "error": "expected x, found y",
            "request_id": "r",
            "backend": "b",
            "pod": "p",
        }
        assert answer.status == reason.status
        assert headers.get(answer.headers, headers.REASON) == reason.encode()
        assert (headers.get(answer.headers, b"retry-after") is not None) == (answer.status in (429, 503))

    @pytest.mark.parametrize(("seconds", "expected"), [(None, b"1"), (0.2, b"1"), (1.2, b"2"), (30.0, b"30")])
    def test_retry_after_is_whole_seconds_rounded_up(self, seconds: float | None, expected: bytes):
        error = PenstockError(Reason.QUEUE_FULL, "full", status=429, retry_after=seconds)
        assert headers.get(error.response().headers, b"retry-after") == expected


class TestFlags:
    def test_addresses(self):
        assert process.address("127.0.0.1:80") == ("127.0.0.1", 80)
        assert process.address("[::1]:80") == ("::1", 80)
        for text in ("80", "a:", "a:99999", "::1:80"):
            with pytest.raises(argparse.ArgumentTypeError):
                process.address(text)

    def test_the_environment_stands_in_for_a_flag_and_the_flag_wins(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("PENSTOCK_SOME_FLAG", "5s")
        parser = process.Parser()
        parser.flag("some-flag", type=process.duration, required=True)
        assert parser.parse_args([]).some_flag == 5.0
        assert parser.parse_args(["--some-flag", "1s"]).some_flag == 1.0


class TestSettingsSource:
    """Each other document counts; beside an operator the file only until the operator has given one."""

    @staticmethod
    def source(
        path: Path | None, *, reports: bool = False
    ) -> tuple[SettingsSource[settings.Settings], list[int]]:
        applied: list[int] = []
        source = SettingsSource(
            path=path,
            decode=lambda data: settings.decode(data, text=True),
            apply=lambda settings: applied.append(settings.batching.max_batch_size),
            reports=reports,
        )
        return source, applied

    @staticmethod
    def document(size: int, version: int | None = None) -> bytes:
        return settings.encode(
            settings.Settings(version=version, batching=settings.Batching(max_batch_size=size))
        )

    def test_the_operators_document_overrules_the_file_whatever_their_versions(self, tmp_path: Path):
        path = tmp_path / "settings.json"
        source, applied = self.source(path, reports=True)
        path.write_bytes(self.document(1, 2**53 - 1))
        assert not source.read_file()  # an operator may answer
        source.alone()
        assert (applied, source.version, source.digest) == ([1], 0, "")
        path.write_bytes(self.document(2, 3))
        assert source.read_file()
        assert source.offer(self.document(3, 2))
        assert (source.version, source.digest) == (2, documents.digest(self.document(3, 2)))
        assert not source.offer(self.document(3, 2))
        path.write_bytes(self.document(4, 2**53 - 1))
        source.alone()
        assert not source.read_file()
        assert source.offer(self.document(5, 1))
        assert (applied, source.version) == ([1, 2, 3, 5], 1)

    def test_without_an_operator_each_change_is_new(self, tmp_path: Path):
        path = tmp_path / "settings.json"
        source, applied = self.source(path)
        for size, version in ((1, None), (2, None), (1, 7), (3, 6)):
            path.write_bytes(self.document(size, version))
            assert source.read_file()
            assert not source.read_file()
        assert (applied, source.version) == ([1, 2, 1, 3], 0)

    def test_a_compressed_file_counts_in_the_place_of_a_plain_one(self, tmp_path: Path):
        path, packed = tmp_path / "settings.json", tmp_path / "settings.json.gz"
        source, applied = self.source(path)
        packed.write_bytes(gzip.compress(self.document(1)))
        assert source.read_file()
        for broken in (b"", b"no gzip", gzip.compress(self.document(2))[:-9]):
            packed.write_bytes(broken)
            assert not source.read_file()
            assert source.refused
        path.write_bytes(self.document(3))
        assert source.read_file()
        assert applied == [1, 3]

    def test_a_bomb_is_not_unpacked(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(settings_source, "MAX_PACKED_BYTES", 1000)
        assert settings_source.unpacked(gzip.compress(bytes(1000))) == bytes(1000)
        with pytest.raises(DocumentError, match="expected at most 1000 bytes"):
            settings_source.unpacked(gzip.compress(bytes(1001)))

    def test_a_document_can_name_itself(self, tmp_path: Path):
        source = SettingsSource(
            path=None,
            decode=settings.decode,
            apply=lambda _: None,
            reports=True,
            named=lambda each: each.backend,
        )
        named = settings.encode(settings.Settings(version=1, backend="b"))
        assert source.offer(named)
        assert source.digest == "b"

    def test_a_process_that_reports_takes_versioned_documents_only(self, tmp_path: Path):
        path = tmp_path / "settings.json"
        path.write_bytes(self.document(1))
        source, applied = self.source(path, reports=True)
        source.alone()
        assert not source.offer(self.document(3))
        assert (source.version, source.digest) == (0, "")
        assert source.offer(self.document(2, 1))
        assert applied == [2]

    def test_what_cannot_be_used_is_told_once_and_changes_nothing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ):
        path = tmp_path / "settings.json"
        source, applied = self.source(path)
        assert not source.read_file()
        assert not source.read_file()
        path.write_bytes(self.document(1, 1))
        assert source.read_file()
        path.write_bytes(b"{ broken")
        assert not source.read_file()
        assert not source.read_file()
        assert applied == [1]
        messages = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
        assert messages == ["settings file cannot be read", "settings applied", "settings refused"]

    async def test_a_file_that_is_being_written_does_not_take_effect(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """Whatever it means as it is: it must be the same twice; at SIGHUP it is read at once."""
        path = tmp_path / "settings.json"
        applied: asyncio.Queue[int] = asyncio.Queue()
        source = SettingsSource(
            path=path,
            decode=settings.decode,
            apply=lambda settings: applied.put_nowait(settings.batching.max_batch_size),
            reports=False,
        )
        monkeypatch.setattr(settings_source, "POLL_SECONDS", 0.001)
        monkeypatch.setattr(settings_source, "SETTLE_SECONDS", 0.001)
        path.write_bytes(self.document(1))
        reads, read_bytes = 0, Path.read_bytes

        def read_and_change(read: Path) -> bytes:
            nonlocal reads
            data = read_bytes(read)
            reads += 1
            if reads < 20:
                path.write_bytes(self.document(reads + 1))
            return data

        monkeypatch.setattr(Path, "read_bytes", read_and_change)
        watching = asyncio.create_task(source.watch())
        try:
            assert (await asyncio.wait_for(applied.get(), 30), reads) == (20, 21)
            monkeypatch.setattr(settings_source, "POLL_SECONDS", 3600)
            monkeypatch.setattr(settings_source, "SETTLE_SECONDS", 3600)
            path.write_bytes(self.document(7))
            source.reload_now()
            assert await asyncio.wait_for(applied.get(), 30) == 7
        finally:
            watching.cancel()

    def test_a_file_that_vanishes_leaves_the_last_settings_and_is_told_once_each_time(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ):
        path = tmp_path / "settings.json"
        source, applied = self.source(path)
        path.write_bytes(self.document(1))
        for times in range(2):
            assert source.read_file() == (not times)
            assert not source.refused
            kept = path.read_bytes()
            path.unlink()
            for _ in range(3):
                assert not source.read_file()
                assert source.refused
            path.write_bytes(kept)
        assert applied == [1]
        assert source.current is not None
        messages = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
        assert messages == ["settings applied", *["settings file cannot be read"] * 2]
