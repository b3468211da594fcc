"""What stands in a model's place: in memory, or as a program.

Read in this order: `scripted_model` (a function behind a dispatcher, on the fake loop), `model_stream` (its
streamed answers), `closed_loop` (callers before it), `probed_model` (the sidecar's own client of a model, in
memory); as programs `model_server` (the usual one), `asgi_model`, `protocol_models` (one a protocol) with
`model_faults` (spoils their answers), `v2_grpc` (its calls), `stream_model` (it streams), `grpc_echo` (of
gRPC alone).
"""
