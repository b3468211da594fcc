"""The protocols whose requests can be batched, by the name that `--protocol` takes."""

from penstock_wire.batch_protocol import BatchProtocol
from penstock_wire.envelope import ENVELOPE_PROTOCOL
from penstock_wire.instances import INSTANCES_PROTOCOL
from penstock_wire.openai import OPENAI_PROTOCOL
from penstock_wire.v2 import V2_PROTOCOL

_ALL: tuple[BatchProtocol, ...] = (INSTANCES_PROTOCOL, V2_PROTOCOL, OPENAI_PROTOCOL, ENVELOPE_PROTOCOL)
PROTOCOLS = {protocol.name: protocol for protocol in _ALL}
