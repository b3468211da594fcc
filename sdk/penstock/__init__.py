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
"""

from penstock.errors import LoadError
from penstock.marks import batched
from penstock.response import Response

__all__ = ["LoadError", "Response", "batched"]
