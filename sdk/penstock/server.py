"""The model server's HTTP side for the `instances` protocol: readiness, items in, predictions out."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Mapping
from typing import Any

from penstock import call_context, openapi, request_ids, try_page
from penstock.encoding import decode, encode
from penstock.errors import ArgumentsError
from penstock.instances_response import failed
from penstock.item_answers import respond, respond_by_item
from penstock.model import Model
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
    Headers,
    get,
)
from penstock_wire.item_streams import stream_type
from penstock_wire.method_names import UNNAMED, cancellable_field, name_in_path
from penstock_wire.process import log

_UNNAMED = b"unnamed"
"""Name that the ready path reports after a nameless userConfig, which did not come from a sidecar."""


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
        self._model: Model | None = None
        self._methods: dict[str, Model] = {}
        self._default = True

    def serve(
        self, model: Model, methods: Mapping[str, Model] | None = None, *, default: bool = True
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
        items, parameters = instances_form.read_request(request.body)
        shared = _shared(model, parameters)
        media = stream_type(request.headers) if model.shape.generator else None
        if media is not None:
            together = get(request.headers, ITEM_STREAMS) == b"1"
            pieces = model.stream(decode(items), shared)
            return await respond_streamed(
                pieces, media, count=len(items), together=together, request_id=request_id
            )
        by_item = get(request.headers, ITEM_ANSWERS) == b"1"
        try:
            answers = await model.run(decode(items), shared)
            return respond_by_item(answers) if by_item else respond(answers, request_id=request_id)
        except Exception as error:
            return failed(error, count=len(items), request_id=request_id)

    def _method(self, model: Model, request: http.Request) -> Model:
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

    async def _reconfigure(self, model: Model, request: http.Request) -> http.Response:
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

    async def _take(self, model: Model, config: Any, name: bytes) -> None:
        """Give the model a userConfig, after it has taken the previous one."""
        async with self._one_config:
            try:
                await model.reconfigure(config)
            except Exception as error:
                log("reconfigure failed", level="error", error=described(error))
                raise
            self._config = name
        log("reconfigured")

    def _openapi(self, model: Model) -> http.Response:
        """Answer with the OpenAPI document."""
        shapes = {name: each.shape for name, each in self._methods.items()} or {"predict": model.shape}
        default = next((name for name, shape in shapes.items() if shape is model.shape), None)
        title = call_context.context().backend or model.shape.name
        body = encode(openapi.document(title, shapes, default if self._default else None))
        return http.Response(status=200, headers=((b"content-type", b"application/json"),), body=body)

    def _health(self, request: http.Request) -> http.Response:
        if request.path == openapi.PATH != self._ready_path and self._model is not None:
            return self._openapi(self._model)
        if self._docs and request.path == try_page.DOCS_PATH != self._ready_path:
            return try_page.response()
        if request.path not in (self._ready_path, openapi.PATH):
            raise PenstockError(
                Reason.NO_ROUTE,
                f"expected POST to any path, GET {self._ready_path} or GET {openapi.PATH}, "
                "found GET of another path",
            )
        limit = get(request.headers, BATCH_LIMIT)
        if request.path == self._ready_path and limit is not None and limit.isdigit():
            self._batch_limit = int(limit)
        if self._model is None:
            raise PenstockError(Reason.NOT_READY, "the model is loading")
        headers: Headers = ((b"content-type", b"application/json"),)
        if self._cancellable:
            headers = (*headers, (CANCELLABLE, self._cancellable))
        if self._model.takes_config:
            headers = (*headers, (CONFIG, self._config))
        return http.Response(status=200, headers=headers, body=b'{"state":"ready"}')


def _retrieved(task: asyncio.Future[None]) -> None:
    """Mark a task's exception as retrieved: it was logged already."""
    if not task.cancelled():
        task.exception()


def _shared(model: Model, parameters: instances_form.Parameters) -> dict[str, Any]:
    """The arguments for all items of a request, from its members beside `instances`."""
    values = decode([raw for _, raw in parameters])
    try:
        with USER_CODE:
            return model.shape.bind_shared(
                {name: value for (name, _), value in zip(parameters, values, strict=True)}
            )
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
