"""The protocols whose requests can be batched: read, join, split. Pure.

Read in this order: `base` (the interface of a protocol), `media_types` (which bodies it reads), `instances`
with `item_answers` and `item_streams` (answers to single items), `v2` on `v2_tensors`, `openai`,
and `item_costs` (what an item says that it costs).
`PROTOCOLS` maps each name that `--protocol` takes to its protocol.
"""

from penstock_sidecar.protocols.base import BatchProtocol
from penstock_sidecar.protocols.instances import INSTANCES_PROTOCOL
from penstock_sidecar.protocols.openai import OPENAI_PROTOCOL
from penstock_sidecar.protocols.v2 import V2_PROTOCOL

_ALL: tuple[BatchProtocol, ...] = (INSTANCES_PROTOCOL, V2_PROTOCOL, OPENAI_PROTOCOL)
PROTOCOLS = {protocol.name: protocol for protocol in _ALL}
