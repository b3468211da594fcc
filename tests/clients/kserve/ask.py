"""Clients of other people, asking a model that doubles: what `test_kserve` sends through a sidecar.

`python ask.py KIND URL COUNT`, in the environment of `requirements-kserve.txt`, prints one JSON document.
Most kinds send COUNT requests at once, the request number i with the values i and i + 0.5 and the id `own-i`;
the document has the id and the values of each answer.
"""

import asyncio
import json
import sys

import httpx
import numpy as np
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

if sys.argv[1].startswith("tritonclient.grpc"):
    import tritonclient.grpc.aio  # its messages have the names of KServe's: a process can have one of them
else:
    from cloudevents.http import CloudEvent, from_http, to_binary, to_structured
    from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

V1 = "/v1/models/double:predict"


def rows(number):
    """The tensor of one request."""
    return np.array([[number, number + 0.5]], dtype=np.float32)


async def kserve_v1(url, count):
    """KServe's client, v1."""
    async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
        asked = [client.infer(url, {"instances": [number]}, model_name="double") for number in range(count)]
        return [answer["predictions"] for answer in await asyncio.gather(*asked)]


async def kserve_v2(url, count, *, binary=False):
    """KServe's client, v2."""

    def request(number):
        x = InferInput("x", [1, 2], "FP32")
        x.set_data_from_numpy(rows(number), binary_data=binary)
        return InferRequest("double", [x], request_id=f"own-{number}")

    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        asked = [client.infer(url, request(number), model_name="double") for number in range(count)]
        answers = await asyncio.gather(*asked)
    return [[answer.id, answer.outputs[0].as_numpy().ravel().tolist()] for answer in answers]


async def triton_aio(url, count, *, binary=False, compression=None):
    """Triton's asynchronous client, which says octets of its JSON."""
    triton = tritonclient.http.aio

    async def ask(number):
        x = triton.InferInput("x", [1, 2], "FP32")
        x.set_data_from_numpy(rows(number), binary_data=binary)
        result = await client.infer(
            "double",
            [x],
            outputs=[triton.InferRequestedOutput("y", binary_data=binary)],
            request_id=f"own-{number}",
            request_compression_algorithm=compression,
        )
        return [result.get_response().get("id"), result.as_numpy("y").ravel().tolist()]

    async with triton.InferenceServerClient(url.removeprefix("http://")) as client:
        return await asyncio.gather(*[ask(number) for number in range(count)])


def triton(url, count, *, binary=False, compression=None):
    """Triton's client."""
    asked = []
    with tritonclient.http.InferenceServerClient(url.removeprefix("http://"), concurrency=count) as client:
        for number in range(count):
            x = tritonclient.http.InferInput("x", [1, 2], "FP32")
            x.set_data_from_numpy(rows(number), binary_data=binary)
            asked.append(
                client.async_infer(
                    "double",
                    [x],
                    outputs=[tritonclient.http.InferRequestedOutput("y", binary_data=binary)],
                    request_id=f"own-{number}",
                    request_compression_algorithm=compression,
                )
            )
        answers = [each.get_result() for each in asked]
    return [[each.get_response().get("id"), each.as_numpy("y").ravel().tolist()] for each in answers]


async def triton_grpc(url, count):
    """Triton's asynchronous client over gRPC: all calls over one connection."""
    triton = tritonclient.grpc.aio

    async def ask(number):
        x = triton.InferInput("x", [1, 2], "FP32")
        x.set_data_from_numpy(rows(number))
        result = await client.infer("double", [x], request_id=f"own-{number}")
        return [result.get_response().id, result.as_numpy("y").ravel().tolist()]

    async with triton.InferenceServerClient(url.removeprefix("http://")) as client:
        assert await client.is_server_live()
        assert await client.is_model_ready("double")
        assert (await client.get_model_metadata("double")).name == "double"
        return await asyncio.gather(*[ask(number) for number in range(count)])


async def kserve_grpc(url, count):
    """KServe's client over gRPC."""

    def request(number):
        x = InferInput("x", [1, 2], "FP32")
        x.set_data_from_numpy(rows(number), binary_data=True)
        return InferRequest("double", [x], request_id=f"own-{number}")

    async with InferenceGRPCClient(url.removeprefix("http://")) as client:
        answers = await asyncio.gather(*[client.infer(request(number)) for number in range(count)])
    return [[answer.id, answer.outputs[0].as_numpy().ravel().tolist()] for answer in answers]


def triton_error(url, count):
    """Triton's client's text of a refusal, beside the refusal's own text."""
    late = {"x-penstock-timeout-ms": "0"}
    with tritonclient.http.InferenceServerClient(url.removeprefix("http://")) as client:
        x = tritonclient.http.InferInput("x", [1, 2], "FP32")
        x.set_data_from_numpy(rows(1))
        try:
            client.infer("double", [x], headers=dict(late))  # it adds to them
        except InferenceServerException as error:
            said = error.message()
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    return [said, httpx.post(f"{url}/v2/models/double/infer", json=body, headers=late).json()["detail"]]


def repository(url, count):
    """Loads the model by Triton's client, and once more with an empty body; whether it is ready then."""
    with tritonclient.http.InferenceServerClient(url.removeprefix("http://")) as client:
        client.load_model("double")
        empty = httpx.post(f"{url}/v2/repository/models/double/load")
        return [empty.status_code, client.is_model_ready("double")]


def events(url, count):
    """The data of the CloudEvents that answer CloudEvents, structured and binary ones."""
    events = []
    for number in range(count):
        event = CloudEvent({"type": "ask", "source": "test", "id": f"own-{number}"}, {"instances": [number]})
        headers, body = (to_structured if number % 2 else to_binary)(event)
        answer = httpx.post(url + V1, headers=headers, content=body)
        events.append(from_http(dict(answer.headers), answer.content).get_data())
    return events


KINDS = {
    "kserve v1": kserve_v1,
    "kserve v2": kserve_v2,
    "kserve v2, binary": lambda url, count: kserve_v2(url, count, binary=True),
    "tritonclient": triton,
    "tritonclient, binary": lambda url, count: triton(url, count, binary=True),
    "tritonclient.aio": triton_aio,
    "tritonclient.aio, binary": lambda url, count: triton_aio(url, count, binary=True),
    "tritonclient, gzip": lambda url, count: triton(url, count, compression="gzip"),
    "tritonclient, binary, deflate": lambda url, count: triton(
        url, count, binary=True, compression="deflate"
    ),
    "tritonclient.aio, binary, gzip": lambda url, count: triton_aio(
        url, count, binary=True, compression="gzip"
    ),
    "tritonclient.aio, deflate": lambda url, count: triton_aio(url, count, compression="deflate"),
    "kserve, gRPC": kserve_grpc,
    "tritonclient.grpc.aio": triton_grpc,
    "error": triton_error,
    "repository": repository,
    "events": events,
}


if __name__ == "__main__":
    result = KINDS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
    if asyncio.iscoroutine(result):
        result = asyncio.run(result)
    print(json.dumps(result))
