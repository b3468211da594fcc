"""Finding what `module:target` names, and refusing what cannot be served."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import LoadError
from penstock.target import find, target_of

MODULE = """
import threading
import penstock


class Called:
    def __init__(self, scale=1):
        self.scale = scale
    def __call__(self, item):
        return item * self.scale
    def predict(self, item):
        raise AssertionError


class Predicts:
    @penstock.batched
    def predict(self, items):
        return items
    def helper(self):
        pass


class Tuned:
    def run(self, item):
        return item
    def reconfigure(self, config):
        self.config = config


class TunedStatic:
    def run(self, item):
        return item
    @staticmethod
    def reconfigure(config, *, strict=True):
        pass


class TunedWrong:
    def run(self, item):
        return item
    def reconfigure(self):
        pass


class TunedYields(Tuned):
    def reconfigure(self, config):
        yield


class LoadYields(Tuned):
    def load(self):
        yield


class CloseYields(Tuned):
    async def close(self):
        yield


class TunedValue:
    reconfigure = 7
    def run(self, item):
        return item


class LoadWrong:
    def run(self, item):
        return item
    def load(self, path):
        pass


class Marked:
    def helper(self, a, b):
        pass
    @penstock.batched(columns=True)
    def embed(self, text, lang="en"):
        return [f"{t}-{l}" for t, l in zip(text, lang)]


class Only:
    def classify(self, item):
        return item


class Child(Called):
    pass


class Static:
    @staticmethod
    def predict(item):
        return item


class ByClass:
    factor = 3
    @classmethod
    def predict(cls, item):
        return item * cls.factor


class Nothing:
    pass


class Two:
    def a(self, item): ...
    def b(self, item): ...


class Below:
    def below(self): ...


class Beside(Below, threading.Thread):
    def __call__(self, item): ...
    def translate(self, item): ...
    @penstock.batch
    def gathered(self, items): ...
    @penstock.multiplexed(2)
    def loaded(self, model_id): ...


class TwoMarked:
    @penstock.batched
    def a(self, items): ...
    @penstock.batched
    def b(self, items): ...


class Framework:
    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs)
    def predict(self, dataset):
        raise AssertionError


class Net(Framework):
    @penstock.batched
    def embed(self, items):
        return items


class Smaller(Net):
    pass


class NetOfTwo(Net):
    @penstock.batched
    def rank(self, items): ...


class CalledBelow(Net):
    def __call__(self, item):
        return item


class Base:
    @penstock.batched
    def __call__(self, items):
        return items


class Served(Base):
    @penstock.batched
    def embed(self, items): ...


class Wrong:
    @penstock.batched
    def predict(self, a, b):
        raise AssertionError


class Outer:
    class Inner:
        def predict(self, item):
            return item


def function(item):
    return item + 1


value = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of models on the Python path; its name."""
    (tmp_path / "models_for_target.py").write_text(MODULE)
    (tmp_path / "models_that_break.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "models_for_target"
    sys.modules.pop("models_for_target", None)


@pytest.mark.parametrize(
    ("attribute", "kwargs", "item", "expected"),
    [
        ("Called", {"scale": 5}, 2, 10),
        ("Called", {}, 2, 2),
        ("Child", {"scale": 2}, 2, 4),
        ("Predicts", {}, [1], [1]),
        ("Only", {}, 4, 4),
        ("Net", {}, [1], [1]),
        ("Smaller", {}, [1], [1]),
        ("CalledBelow", {}, 4, 4),
        ("Static", {}, 4, 4),
        ("ByClass", {}, 4, 12),
        ("Outer.Inner", {}, 4, 4),
        ("function", {}, 4, 5),
    ],
)
def test_the_method_to_serve_is_chosen(
    module: str, attribute: str, kwargs: dict[str, int], item: object, expected: object
) -> None:
    """`__call__`, else `predict`, else the only one marked, else the only public one.

    One that a framework's class has for its own use does not win against a marked one below it.
    """
    served = find(f"{module}:{attribute}", kwargs).build()
    assert served.shape.call(served.method, {served.shape.parameters[0].name: item}) == expected


def test_the_only_marked_method_is_served_beside_unmarked_ones(module: str) -> None:
    served = find(f"{module}:Marked").build()
    assert served.method(["a"], ["b"]) == ["a-b"]
    assert served.shape.columns


@pytest.mark.parametrize(
    ("attribute", "kwargs", "message"),
    [
        ("Nothing", {}, "expected a method __call__ or predict, .* found no method"),
        ("LoadWrong", {}, r"LoadWrong.load: expected a method that takes no arguments, found \(self, path\)"),
        ("Wrong", {}, r"models_for_target:Wrong.predict: expected one parameter, .* found \(a, b\)"),
        (
            "TunedWrong",
            {},
            r"TunedWrong.reconfigure: expected a method that takes the config alone, .*\(self\)",
        ),
        ("TunedValue", {}, "TunedValue.reconfigure: expected a method, found int"),
        (
            "LoadYields",
            {},
            "LoadYields.load: expected a method that runs when called, found a generator",
        ),
        ("CloseYields", {}, "CloseYields.close: expected a method that runs .*, found a generator"),
        ("TunedYields", {}, "TunedYields.reconfigure: expected a method that runs .*, found a generator"),
        ("Missing", {}, "expected Missing in module models_for_target, found no Missing"),
        ("value", {}, "expected a class or a function, found int"),
        ("function", {"a": 1}, "expected no init kwargs for a function, found a"),
        ("Called", {"size": 1}, r"expected init kwargs for \(scale=1\), found size: got an unexpected"),
    ],
)
def test_what_cannot_be_served_is_told_before_anything_is_constructed(
    module: str, attribute: str, kwargs: dict[str, int], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        find(f"{module}:{attribute}", kwargs)


def test_reconfigure_is_found_beside_the_method_that_is_served_and_never_served_itself(module: str) -> None:
    served = find(f"{module}:Tuned").build()
    assert served.reconfigure is not None
    served.reconfigure({"a": 1})
    assert served.method.__name__ == "run"
    assert served.method.__self__.config == {"a": 1}
    assert find(f"{module}:TunedStatic").build().reconfigure is not None
    assert find(f"{module}:Called").build().reconfigure is None


@pytest.mark.parametrize(
    ("attribute", "names", "default"),
    [
        ("Marked", ["embed", "helper"], True),
        ("Predicts", ["helper", "predict"], True),
        ("Two", ["a", "b"], False),
        ("Beside", ["__call__", "below", "translate"], True),
        ("TwoMarked", ["a", "b"], False),
        ("Net", ["embed"], True),
        ("NetOfTwo", ["embed", "rank"], False),
        ("CalledBelow", ["__call__", "embed"], True),
        ("Served", ["__call__", "embed"], True),
    ],
)
def test_a_request_may_name_each_method_of_the_author(
    module: str, attribute: str, names: list[str], default: bool
) -> None:
    """Where there are several, and none is the usual one, a request has to.

    A framework's methods are not open to clients, nor is what gathers or loads within the process.
    """
    served = find(f"{module}:{attribute}").build()
    assert (sorted(served.methods), served.default) == (names, default)


@pytest.mark.parametrize("name", ["module", "module:", ":Class", ""])
def test_a_target_has_two_parts(name: str) -> None:
    with pytest.raises(LoadError, match="expected a target such as module:Class"):
        find(name)


def test_a_module_that_is_not_there_is_told_from_one_that_it_imports(module: str) -> None:
    """The author of a module that lacks a dependency sees that dependency's name in a traceback."""
    with pytest.raises(LoadError, match="expected a module no_such_module_here on the Python path"):
        find("no_such_module_here:Class")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        find("models_that_break:Class")


def test_what_a_class_has_for_its_objects_alone_is_not_a_method() -> None:
    """A descriptor of a framework's base class that raises when the class itself is asked."""

    class OfObjects:
        def __get__(self, instance: object, owner: type) -> int:
            if instance is None:
                raise RuntimeError("no object")
            return 5

    class Framed:
        device = OfObjects()

        def score(self, item: int) -> int:
            return item

    assert target_of("m:Framed", Framed).shape.name == "m:Framed.score"


@pytest.mark.parametrize(
    ("hint", "told"),
    [("list[int]", True), (list[int], True), (list, True), ("typing.List", True), ("Sequence[int]", False)],
)
def test_an_unmarked_method_that_says_it_takes_a_list_is_told(
    hint: object, told: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ray's authors expect a batch there, and would get one item a call."""

    class Model:
        def __call__(self, items):  # type: ignore[no-untyped-def]
            return items

    Model.__call__.__annotations__["items"] = hint
    target_of("m:Model", Model)
    assert ("@penstock.batched, if the list is a batch" in capfd.readouterr().err) is told
