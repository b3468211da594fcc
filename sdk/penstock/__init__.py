"""The model author's API: it turns a Python class into a model server that takes batches.

::

    import penstock


    class Digits:
        def __init__(self, path):
            self.model = joblib.load(path)

        @penstock.batched
        def predict(self, images):
            return self.model.predict(images)

`python -m penstock.serve model:Digits --init-kwargs '{"path": "svc.joblib"}'` serves it,
`penstock run` serves it behind a sidecar and a router.

Read in this order: `errors`, `raised` (a method's exception at its caller), `end` (`END`), `decorators`
(`@batched`), `request` (`Request`), `response` (`Response`), `array_validation` and `validation` (by
pydantic), `signature` (a method's parameters), `target` (resolves `module:Class`), `encoding` (JSON in and
out), `request_ids`, `user_code` (the edge to it), `call_context` (`context()`), `multiplexed` (many models
in one process), `threads` and `steps` (blocking code), `answer_list` (a method's return value),
`item_pieces` (a generator's pieces), `model` (runs the model on a request's items), `batch_code` (runs
batches that are formed in the process), `instances_response`, `item_answers` and `streamed_response`
(answers as HTTP), `openapi` (describes the served methods), `tensors` (the Open Inference Protocol),
`try_page` (a page to try the methods), `server` (the HTTP side), `arguments` (of commands), `near_names`
(for messages), `serve` (the model server's command). `cli` and `__main__` are the command `penstock`,
`local` is its `run`; `client` writes resources (`Client`). `in_process` (`@batch`) is independent of the
rest, `testing` serves a class in a test, `running` (`run`) an application in a script. `composition`
(`@backend`, `.bind`) makes one application of several classes, which call each other by `handles`
(`Handle`); `call_chain` refuses circular calls, and `export` writes the application's resources.
`code_archive` packs code that is not in an image, `deploy` sends it to a cluster. `formats` serves a model's
file as it is, `examples` is a small model to try it with.
"""

from penstock.call_context import Context, context
from penstock.client import Client
from penstock.composition import Application, backend
from penstock.decorators import batched
from penstock.end import END
from penstock.errors import (
    AnswerError,
    CallCycle,
    CompositionError,
    ControlError,
    DeadlineExceeded,
    EndpointNotFound,
    LoadError,
    SlowReader,
    UnknownModel,
    UpstreamError,
    UpstreamTimeout,
)
from penstock.handles.handle import Handle
from penstock.in_process.decorator import batch
from penstock.in_process.threaded import Batcher
from penstock.multiplexed import multiplexed
from penstock.request import Request
from penstock.response import Response
from penstock.running import run


def __getattr__(name: str) -> str:
    """Return `__version__`, which is read from the installation when it is asked for."""
    if name == "__version__":
        from penstock_wire.version import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "END",
    "AnswerError",
    "Application",
    "Batcher",
    "CallCycle",
    "Client",
    "CompositionError",
    "Context",
    "ControlError",
    "DeadlineExceeded",
    "EndpointNotFound",
    "Handle",
    "LoadError",
    "Request",
    "Response",
    "SlowReader",
    "UnknownModel",
    "UpstreamError",
    "UpstreamTimeout",
    "backend",
    "batch",
    "batched",
    "context",
    "multiplexed",
    "run",
]
