"""The model server's HTTP side for the `instances` protocol: readiness, items in, predictions out."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from penstock import call_context, openapi, request_ids, tensors, try_page
from penstock.batch_code import Gathered, steps_of_stream
from penstock.encoding import decode, encode
from penstock.errors import ArgumentsError
from penstock.instances_response import failed
from penstock.item_answers import respond, respond_by_item
from penstock.item_pieces import Events, collected, single_pieces
from penstock.model import Model
from penstock.request import Request
from penstock.response import Response, to_http
from penstock.signature import Shape
from penstock.streamed_response import respond_streamed
from penstock.user_code import USER_CODE, described, log_raised
from penstock_wire import http, instances_form
from penstock_wire.contract import RECONFIGURE_PATH
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import (
    BATCH_LIMIT,
    CANCELLABLE,
    CONFIG,
    ITEM_ANSWERS,
    ITEM_STREAMS,
    METHOD,
    RECONFIGURE,
    REQUEST_ID,
    TENSORS,
    Headers,
    get,
)
from penstock_wire.item_streams import stream_type
from penstock_wire.method_names import UNNAMED, cancellable_field, name_in_path
from penstock_wire.process import log
from penstock_wire.version import version

_JSON: Headers = ((b"content-type", b"application/json"),)
_UNNAMED = b"unnamed"
"""Name that the ready path reports after a nameless userConfig, which did not come from a sidecar."""


class Callee(Protocol):
    """A served method as the server calls it (`model.Model`)."""

    @property
    def shape(self) -> Shape:
        """How it takes items."""
        ...

    @property
    def takes_config(self) -> bool:
        """See `Model.takes_config`."""
        ...

    @property
    def tensors(self) -> Mapping[str, Any] | None:
        """See `Served.tensors`."""
        ...

    async def run(
        self, items: Sequence[Any], shared: Mapping[str, Any], *, arrays: bool = False
    ) -> list[Any]:
        """See `Model.run`."""
        ...

    def stream(self, items: Sequence[Any], shared: Mapping[str, Any]) -> AsyncGenerator[Events, None]:
        """See `Model.stream`."""
        ...

    async def reconfigure(self, config: Any) -> None:
        """See `Model.reconfigure`."""
        ...


class ModelServer:
    """Answers requests, as soon as it has a model.

    Args:
        ready_path: path that answers GET with 200 when the model is loaded and 503 before.
        reconfigure_secret: the value of `x-penstock-reconfigure` that a userConfig needs; empty = none.
        docs: serve a page to try the model.
    """

    def __init__(self, ready_path: str = "/", *, reconfigure_secret: str = "", docs: bool = False) -> None:
        self._docs = docs
        self._ready_path = ready_path
        self._secret = reconfigure_secret.encode()
        self._config = b""
        self._cancellable = b""
        self._one_config = asyncio.Lock()
        self._batch_limit: int | None = None
        self._model: Callee | None = None
        self._methods: dict[str, Callee] = {}
        self._default = True
        self._takes_raw = False
        self._gathered: dict[Callee, Gathered] = {}

    def serve(
        self, model: Callee, methods: Mapping[str, Callee] | None = None, *, default: bool = True
    ) -> None:
        """Become ready, and answer with this model from now on.

        Args:
            model: answers requests that name no method; it takes the userConfig.
            methods: the methods that requests can name, by name; if there are none, names are ignored.
            default: False if each request has to name a method.
        """
        self._methods = dict(methods or {})
        self._default = default
        self._model = model
        raw = [each for each in (model, *self._methods.values()) if each.shape.raw]
        self._takes_raw = bool(raw)
        # A sidecar does not batch their requests: they have no form in which they could be joined.
        self._gathered = {
            each: Gathered(each) for each in raw if isinstance(each, Model) and each.shape.batched
        }
        # Only asynchronous methods can be cancelled: a thread goes on after its connection is closed.
        ends = {name: each.shape.asynchronous for name, each in self._methods.items()}
        if default:
            ends[UNNAMED] = model.shape.asynchronous
        self._cancellable = cancellable_field(ends)

    async def handle(self, request: http.Request) -> http.Response:
        """Answer one request (a `penstock_wire.http.Handler`)."""
        field = get(request.headers, REQUEST_ID)
        ids = request_ids.begin(field)
        context = call_context.opened(call_context.begin(request.headers, self._batch_limit))
        # NB: a batch's problem goes to several clients, and must not name the requests of the others.
        request_id = ids[0] if len(ids) == 1 else ""
        answer: http.Response | None = None
        try:
            with USER_CODE:
                answer = await self._answer(request, request_id)
        except PenstockError as error:
            answer = error.response(request_id=request_id)
        except asyncio.CancelledError:
            context.cancel_calls()
            raise
        except Exception as error:
            log_raised("unexpected error", error)
            answer = PenstockError(Reason.INTERNAL, "see the log of the model server").response(
                request_id=request_id
            )
        finally:
            if answer is None or answer.stream is None:  # a stream ends its context itself
                context.end()
        if field and get(answer.headers, REQUEST_ID) is None:
            answer.headers = (*answer.headers, (REQUEST_ID, field))
        return answer

    async def _answer(self, request: http.Request, request_id: str) -> http.Response:
        if (raw := self._raw(request)) is not None:
            return await self._answer_raw(raw, request, request_id)
        if request.method in ("GET", "HEAD"):
            return self._health(request)
        if request.method != "POST":
            raise PenstockError(
                Reason.METHOD_NOT_ALLOWED,
                f"expected POST, found {request.method}",
                headers=((b"allow", b"GET, HEAD, POST"),),
            )
        if self._model is None:
            raise PenstockError(Reason.NOT_READY, "the model is loading", not_admitted=True)
        coding = get(request.headers, b"content-encoding") or b"identity"
        if coding.lower() != b"identity":
            raise PenstockError(
                Reason.BAD_MEDIA_TYPE,
                f"expected a body without content-encoding, found {coding[:64].decode('latin-1')}",
            )
        if request.path == RECONFIGURE_PATH:
            return await self._reconfigure(self._model, request)
        model = self._method(self._model, request)
        if request.path.endswith("/infer") and (sent := tensors.read(request, model.shape)) is not None:
            return await _infer(model, request, sent, request_id)
        items, parameters = instances_form.read_request(request.body)
        beside = decode([raw for _, raw in parameters])
        shared = _shared(model, {name: value for (name, _), value in zip(parameters, beside, strict=True)})
        values = _values(model, decode(items), request)
        media = stream_type(request.headers) if model.shape.generator else None
        if media is not None:
            together = get(request.headers, ITEM_STREAMS) == b"1"
            pieces = model.stream(values, shared)
            return await respond_streamed(
                pieces, media, count=len(items), together=together, request_id=request_id
            )
        by_item = get(request.headers, ITEM_ANSWERS) == b"1"
        try:
            answers = await model.run(values, shared)
            return respond_by_item(answers) if by_item else respond(answers, request_id=request_id)
        except Exception as error:
            return failed(error, count=len(items), request_id=request_id)

    def _raw(self, request: http.Request) -> Callee | None:
        """The method of a request that is not in the form of `instances`, if it takes any; else None."""
        if self._model is None or not self._takes_raw or request.path == RECONFIGURE_PATH:
            return None
        if request.method in ("GET", "HEAD") and (
            get(request.headers, BATCH_LIMIT) is not None  # a sidecar's probe
            or request.path == self._ready_path != "/"
            or request.path == openapi.PATH
            or (self._docs and request.path == try_page.DOCS_PATH)
        ):
            return None
        model = self._method(self._model, request)
        if not model.shape.raw:
            return None
        if request.method == "POST" and b'"instances"' in request.body:
            try:
                instances_form.read_request(request.body)
            except PenstockError:
                return model
            return None
        return model

    async def _answer_raw(self, model: Callee, request: http.Request, request_id: str) -> http.Response:
        """Answer a request by a method that takes it as it is; the answer has no form of ours."""
        whole = Request(request.method, request.target, request.headers, request.body)
        media = stream_type(request.headers) if model.shape.generator else None
        if media is not None:
            pieces = self._pieces(model, whole)
            return await respond_streamed(pieces, media, count=1, together=False, request_id=request_id)
        try:
            gathered = self._gathered.get(model)
            if gathered is None:
                (answer,) = await model.run([whole], {})
            elif model.shape.generator:
                (answer,) = await collected(self._pieces(model, whole), 1)
            else:
                answer = await gathered.call(whole, self._batch_limit)
            if isinstance(answer, BaseException | Response):
                return respond([answer], request_id=request_id)
            return to_http(Response(body=answer))
        except Exception as error:
            return failed(error, count=1, request_id=request_id)

    def _pieces(self, model: Callee, request: Request) -> AsyncGenerator[Events, None]:
        gathered = self._gathered.get(model)
        if gathered is None:
            return model.stream([request], {})
        return single_pieces([steps_of_stream(gathered.call(request, self._batch_limit))])

    def _method(self, model: Callee, request: http.Request) -> Callee:
        """The method that a request names, by its header or the end of its path; else the default one."""
        methods = self._methods
        if not methods:
            return model
        field = get(request.headers, METHOD)
        if field is None:
            name = name_in_path(request.path)
            served = methods.get(name)
            if served is None and self._default:
                return model
        else:
            name = field.decode("latin-1")
            served = methods.get(name)
        if served is None:
            where = "x-penstock-method" if field is not None else "the end of the path"
            raise PenstockError(
                Reason.NO_ROUTE,
                f"expected {where} to name a method ({', '.join(sorted(methods))}), found {name[:64]!r}",
                extra={"methods": sorted(methods)},
            )
        return served

    async def _reconfigure(self, model: Callee, request: http.Request) -> http.Response:
        if self._secret and not hmac.compare_digest(get(request.headers, RECONFIGURE) or b"", self._secret):
            raise PenstockError(
                Reason.FORBIDDEN, "expected this pod's x-penstock-reconfigure value, found another or none"
            )
        if not model.takes_config:
            raise PenstockError(
                Reason.NO_ROUTE, "expected a class with a method reconfigure(config), found none of that name"
            )
        try:
            config = json.loads(request.body)
        except (ValueError, RecursionError) as error:
            raise PenstockError(Reason.BAD_JSON, f"expected a config in JSON: {error}") from error
        try:
            # NB: the caller can disconnect before it ends. A reconfiguration that has begun goes on, so that
            # a configuration is never half applied.
            name = get(request.headers, CONFIG) or _UNNAMED
            taking = asyncio.ensure_future(self._take(model, config, name))
            taking.add_done_callback(_retrieved)
            await asyncio.shield(taking)
        except Exception as error:
            # NB: a userConfig is from the operator's user, not from a client: its message can be reported.
            text = f"reconfigure raised {described(error)}"
            status = 422 if isinstance(error, ValueError | TypeError | LookupError) else 500
            raise PenstockError(Reason.MODEL_FAILED, text, status=status) from error
        return http.Response(status=204)

    async def _take(self, model: Callee, config: Any, name: bytes) -> None:
        """Give the model a userConfig, after it has taken the previous one."""
        async with self._one_config:
            try:
                await model.reconfigure(config)
            except Exception as error:
                log("reconfigure failed", level="error", error=described(error))
                raise
            self._config = name
        log("reconfigured")

    def _openapi(self, model: Callee) -> http.Response:
        """Answer with the OpenAPI document."""
        shapes = {name: each.shape for name, each in self._methods.items()} or {"predict": model.shape}
        default = next((name for name, shape in shapes.items() if shape is model.shape), None)
        title = call_context.context().backend or model.shape.name
        body = encode(openapi.document(title, shapes, default if self._default else None))
        return http.Response(status=200, headers=_JSON, body=body)

    def _v2(self, request: http.Request) -> http.Response:
        """Answer what the Open Inference Protocol asks of a server and a model beside inference."""
        if self._model is None:
            raise PenstockError(Reason.NOT_READY, "the model is loading", not_admitted=True)
        path = request.path
        document: dict[str, Any] = {}
        if path == "/v2":
            document = {"name": "penstock", "version": version(), "extensions": ["binary_tensor_data"]}
        elif path.startswith("/v2/models/"):
            model, name = self._method(self._model, request), name_in_path(path)
            document = {"name": name, "ready": True}
            if not path.endswith("/ready"):
                document = tensors.metadata(model.shape, name, model.tensors)
        elif path not in ("/v2/health/live", "/v2/health/ready"):
            raise PenstockError(Reason.NO_ROUTE, "expected /v2, /v2/health/live, ready or /v2/models/NAME")
        return http.Response(status=200, headers=_JSON, body=encode(document))

    def _health(self, request: http.Request) -> http.Response:
        if request.path == openapi.PATH != self._ready_path and self._model is not None:
            return self._openapi(self._model)
        if self._docs and request.path == try_page.DOCS_PATH != self._ready_path:
            return try_page.response()
        if (request.path + "/").startswith("/v2/") and request.path != self._ready_path:
            return self._v2(request)
        if request.path not in (self._ready_path, openapi.PATH):
            raise PenstockError(
                Reason.NO_ROUTE,
                f"expected POST to any path, GET {self._ready_path}, /v2 or {openapi.PATH}, "
                "found GET of another path",
            )
        limit = get(request.headers, BATCH_LIMIT)
        if request.path == self._ready_path and limit is not None and limit.isdigit():
            self._batch_limit = int(limit)
        if self._model is None:
            raise PenstockError(Reason.NOT_READY, "the model is loading")
        headers: Headers = (*_JSON, (TENSORS, b"1"))
        if self._cancellable:
            headers = (*headers, (CANCELLABLE, self._cancellable))
        if self._model.takes_config:
            headers = (*headers, (CONFIG, self._config))
        return http.Response(status=200, headers=headers, body=b'{"state":"ready"}')


async def _infer(
    model: Callee, request: http.Request, sent: tensors.Inference, request_id: str
) -> http.Response:
    """Answer a request of the Open Inference Protocol."""
    try:
        shared = _shared(model, sent.shared)
        answers = await model.run(_values(model, sent.items(model.shape), request), shared, arrays=True)
        return sent.respond(answers, name_in_path(request.path), request_id)
    except PenstockError:
        raise
    except Exception as error:
        return failed(error, count=sent.rows, request_id=request_id)


def _values(model: Callee, values: list[Any], request: http.Request) -> list[Any]:
    """The items as the method gets them; for a method that takes requests, each is the body of one."""
    if model.shape.request is None:
        return values
    return [
        value
        if isinstance(value, ArgumentsError)
        else Request(request.method, request.target, request.headers, item=value)
        for value in values
    ]


def _retrieved(task: asyncio.Future[None]) -> None:
    """Mark a task's exception as retrieved: it was logged already."""
    if not task.cancelled():
        task.exception()


def _shared(model: Callee, members: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for all items of a request, from its members beside `instances`."""
    try:
        with USER_CODE:
            return model.shape.bind_shared(members)
    except ArgumentsError as error:
        if error.missing:
            where = {"path": "$", "expected": f"members {', '.join(error.missing)}", "found": "none"}
        elif error.unknown:
            found = ", ".join(error.unknown)[:1000]
            where = {"path": "$", "expected": "members that are parameters", "found": found}
        else:
            path = error.paths[0] if error.paths else "$"
            where = {"path": path, "expected": "a value of the parameter's type", "found": "another"}
        raise PenstockError(Reason.BAD_SHAPE, str(error), extra=where) from error
    except Exception as error:  # a validator of the annotated type
        log_raised("the model raised an exception", error)
        raise PenstockError(Reason.MODEL_FAILED, f"the model raised {described(error)}") from error
