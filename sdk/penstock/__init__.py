"""What a model author imports: a Python class becomes a model server that takes batches.

::

    import penstock


    class Digits:
        def __init__(self, path):
            self.model = joblib.load(path)

        @penstock.batched
        def predict(self, images):
            return self.model.predict(images)

`python -m penstock.serve model:Digits --init-kwargs '{"path": "svc.joblib"}'` serves it.

Read in this order: `errors`, `decorators` (`@batched`), `response` (`Response`), `signature` (what a method
takes), `target` (from `module:Class` to what is served), `encoding` (JSON in and out), `request_ids`, `model`
(runs the model on a request's items), `instances_response` and `item_answers` (answers as HTTP), `server`
(the HTTP side), `serve` (the command).
"""

from penstock.decorators import batched
from penstock.errors import LoadError
from penstock.response import Response

__all__ = ["LoadError", "Response", "batched"]
