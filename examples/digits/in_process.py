"""The model without Penstock around it: `python - '<init kwargs>' < in_process.py` in a pod of the image.

Prints one JSON line: `items`, the held-out images, and `predictions`, what the model says to each alone.
"""

from __future__ import annotations

import json
import sys

from digits_data import held_out
from model import Digits

model = Digits(**json.loads(sys.argv[1]))
images, _ = held_out()
print(json.dumps({"items": images, "predictions": [model.predict([image])[0] for image in images]}))
