"""`.bind`: what an application consists of, and what cannot be one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import penstock
from penstock import Handle, serve
from penstock.composition import ALONE, BATCHING, COUNTS, SPEC, Reference, own_settings
from penstock.encoding import encode
from penstock.errors import AnswerError, CompositionError, LoadError
from penstock.target import target_of


@penstock.backend
class Adder:
    def __init__(self, increment: int = 1) -> None:
        self.increment = increment

    @penstock.batched
    def add(self, values: list[int]) -> list[int]:
        return [value + self.increment for value in values]


@penstock.backend(name="factor", spec={"replicas": 2, "batching": {"maxBatchSize": 4}})
class Multiplier:
    def __init__(self, *, multiple: int) -> None:
        self.multiple = multiple

    def __call__(self, value: int) -> int:
        return value * self.multiple


@penstock.backend
class HTTPIngress:
    def __init__(self, steps: Any, *, other: Any = None, **more: Any) -> None: ...

    async def __call__(self, value: int) -> int:
        return value


@penstock.backend
def shout(text: str) -> str:
    return text.upper()


def test_an_application_has_each_node_behind_those_that_it_calls() -> None:
    adder = Adder.bind(2)
    app = HTTPIngress.bind([adder, Multiplier.bind(multiple=3)], other={"x": adder}, text=shout.bind(), n=1)
    nodes = app.nodes
    assert [node.name for node in nodes] == ["adder", "factor", "shout", "http-ingress"]
    assert app.root == nodes[-1]
    assert [node.target.partition(":")[2] for node in nodes] == [
        "Adder",
        "Multiplier",
        "shout",
        "HTTPIngress",
    ]
    assert nodes[0].init_kwargs == {"increment": 2}
    assert nodes[-1].init_kwargs == {
        "steps": [{"handle": "adder"}, {"handle": "factor"}],
        "other": {"x": {"handle": "adder"}},
        "text": {"handle": "shout"},
        "n": 1,
    }
    assert nodes[-1].handles == (Reference("adder"), Reference("factor"), Reference("shout"))


def test_a_spec_is_the_users_and_nodes_that_take_one_item_get_each_request_alone() -> None:
    assert Adder.bind().root.spec == {}
    assert Multiplier.bind(multiple=1).root.spec == {"replicas": 2, "batching": {"maxBatchSize": 4}}
    assert HTTPIngress.bind([]).root.spec == {"batching": ALONE}
    twenty = penstock.backend(batching={"maxConcurrentBatches": 20})(type("Twenty", (HTTPIngress,), {}))
    assert twenty.bind([]).root.spec == {"batching": {"maxBatchSize": 1, "maxConcurrentBatches": 20}}


@pytest.mark.parametrize(
    ("kind", "size", "batching"),
    [
        (HTTPIngress, None, ALONE),
        (HTTPIngress, 1, ALONE),
        (HTTPIngress, 8, {"maxBatchSize": 8}),
        (len, None, ALONE),
        (Adder, None, None),
        (Adder, 1, {"maxBatchSize": 1}),
        (Adder, 8, {"maxBatchSize": 8}),
        (Multiplier, None, {"maxBatchSize": 4}),
        (Multiplier, 8, {"maxBatchSize": 8}),
    ],
)
def test_penstock_run_gives_a_class_by_itself_the_batching_of_its_node(
    kind: Any, size: int | None, batching: Any
) -> None:
    """A size of the command line replaces the class's own, or `ALONE`."""
    assert own_settings(kind, size).get("batching") == batching


def test_a_class_that_was_bound_twice_is_two_nodes_and_a_name_may_be_given() -> None:
    app = HTTPIngress.bind([Adder.bind(1), Adder.bind(2), Adder.bind(3).named("adder-2")])
    assert [node.name for node in app.nodes] == ["adder", "adder-3", "adder-2", "http-ingress"]


def test_a_subclass_binds_itself_and_bind_is_no_method_that_is_served() -> None:
    class Louder(Multiplier):
        pass

    assert Louder.bind(multiple=1).root.kind is Louder
    target_of("Adder", Adder)  # its only public method is `add`, `bind` beside it or not


def test_a_handle_may_be_bound_to_an_endpoint_that_is_no_node() -> None:
    app = HTTPIngress.bind([Handle("other", "shared", missing_ok=True)], other=Handle("own", missing_ok=True))
    assert app.root.init_kwargs["steps"] == [{"handle": "other", "namespace": "shared"}]
    assert app.root.handles == (Reference("other", "shared"), Reference("own"))


def test_what_is_changed_later_changes_no_application() -> None:
    steps: list[Any] = [Adder.bind()]
    app = HTTPIngress.bind(steps)
    steps.append(app)
    assert [node.name for node in app.nodes] == ["adder", "http-ingress"]


def _round() -> Any:
    endless: list[Any] = []
    endless.append(endless)
    return HTTPIngress.bind(endless)


def _by_name(name: str, other: str) -> Any:
    """Two nodes, of which each has a handle of the other."""
    first = HTTPIngress.bind([], other=Handle(other, missing_ok=True)).named(name)
    return HTTPIngress.bind([first], other=Handle(name, missing_ok=True)).named(other)


class Local:
    """Not decorated."""

    bind = 3

    def __call__(self, x: int) -> int:
        return x


def _inner() -> Any:
    @penstock.backend
    class Inner(HTTPIngress):
        pass

    return Inner.bind([])


def test_the_fields_of_a_spec_are_those_of_the_resource() -> None:
    document = yaml.safe_load((Path(__file__).parents[3] / "crds" / "modelbackends.yaml").read_text())
    schema = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    batching = schema["properties"]["batching"]["properties"]
    assert set(SPEC) == set(schema["properties"])
    assert set(BATCHING) == set(batching)
    assert {name: batching[name]["maximum"] for name in COUNTS} == COUNTS


def build(arguments: dict[str, Any]) -> Any:
    return HTTPIngress.bind([])


def test_a_function_that_binds_an_application_is_not_a_model(capfd: pytest.CaptureFixture[str]) -> None:
    """Ray Serve's app builders: what they return is to be served."""
    assert serve.main([f"{__name__}:build"]) == 1
    expected = "found a function that binds HTTPIngress: name what it returns (app = build(…))\n"
    assert capfd.readouterr().err.endswith(expected)
    with pytest.raises(LoadError, match="a function that binds shout"):
        penstock.run(lambda: shout.bind())
    with pytest.raises(AnswerError, match="serve what the function returns"):
        encode(build({}))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (
            lambda: penstock.backend(batching={"max_batch_size": 4}),
            CompositionError,
            "found 'max_batch_size': did you mean maxBatchSize?",
        ),
        (
            lambda: penstock.backend(spec={"num_replicas": 2}),
            CompositionError,
            "found 'num_replicas': did you mean replicas?",
        ),
        (
            lambda: penstock.backend(spec={"user_config": {}}),
            CompositionError,
            "found 'user_config': did you mean userConfig?",
        ),
        (
            lambda: penstock.backend(batching={"maxConcurrentBatches": 100}),
            ValueError,
            "penstock.backend: expected maxConcurrentBatches to be an integer from 1 to 64, found 100",
        ),
        (
            lambda: penstock.backend(batching={"batchWaitTimeout": 0.05}),
            ValueError,
            'expected batchWaitTimeout to be a time such as "50ms", found 0.05',
        ),
        (lambda: Adder.bind(1, 2), TypeError, "Adder.bind: expected arguments (increment: 'int' = 1)"),
        (lambda: Adder.bind(up=2), TypeError, "unexpected keyword argument 'up'"),
        (lambda: shout.bind(1), TypeError, "expected no arguments for a function"),
        (lambda: penstock.backend(3), TypeError, "expected a class or a function, found 3"),  # type: ignore[type-var]
        (lambda: penstock.backend(Local), TypeError, "expected a class without a bind"),
        (lambda: Adder.bind().named("A b"), CompositionError, "begins with a letter, found 'A b'"),
        (
            lambda: HTTPIngress.bind([Multiplier.bind(multiple=1), Multiplier.bind(multiple=2)]).nodes,
            CompositionError,
            "found 'factor' for <Multiplier.bind(multiple)> and <Multiplier.bind(multiple)>",
        ),
        (lambda: _by_name("a", "b").nodes, CompositionError, "in a circle, found a → b → a"),
        (
            lambda: HTTPIngress.bind([], other=Handle("a", url="http://a")).nodes,
            CompositionError,
            "url='http://a'",
        ),
        (
            lambda: HTTPIngress.bind([], other=Handle("a", missing_ok=True).options(stream=True)).nodes,
            CompositionError,
            "call .options(…) in the constructor",
        ),
        (_round, CompositionError, "at most 32 levels"),
        (
            lambda: HTTPIngress.bind([object()]).root.init_kwargs,
            CompositionError,
            "expected an argument steps with",
        ),
        (lambda: _inner().root.target, CompositionError, "that other processes can import"),
    ],
)
def test_what_cannot_be_bound_says_why(make: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as raised:
        make()
    assert words in str(raised.value)
