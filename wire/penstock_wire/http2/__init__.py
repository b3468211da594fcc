"""HTTP/2 (RFC 9113) with prior knowledge, and gRPC on it, for clients of both data planes.

A connection that begins with HTTP/2's preface gets an `H2Connection` in place of its `H1Connection`; its
requests are exchanges of the same `Service`. A call of `inference.GRPCInferenceService` becomes a request of
the Open Inference Protocol over REST with binary tensors, and its answer the call's, so routing, batching and
every refusal are those of HTTP, and the two share batches. Other calls pass as they are.

Read in this order: `frames` (the wire format), `fields` (header blocks), `head` (requests and answers), `end`
(what both ends share), `exchange` (one stream), `connection`; then gRPC: `protobuf` (fields and numbers),
`tensors` (numbers to bytes and back), `members` (JSON to fields and back), `inference` (messages of the Open
Inference Protocol), `status` (errors), `reflection`, `call` (one call, which uses all of these) and
`passed_call`; then towards a model: `client`, `upstream`, and for one that speaks gRPC alone `asking` and
`rest_upstream`.
"""
