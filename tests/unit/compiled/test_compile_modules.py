"""What is compiled: the list, what it must not hold, and that nothing else differs."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

import compile_modules as subject

MODULES = [f"{package}.{name}" for package, names in subject.MODULES.items() for name in names]
COMPILED = os.environ.get("PENSTOCK_TEST_BUILD") == "compiled"


@pytest.mark.parametrize("name", MODULES)
def test_the_tests_run_on_the_build_that_was_asked_for(name: str) -> None:
    """Else the run on the compiled modules, or the one on Python, would prove nothing."""
    path = importlib.import_module(name).__file__ or ""
    assert path.endswith(".so") == COMPILED, path


@pytest.mark.parametrize("path", subject.sources(), ids=lambda path: path.stem)
def test_no_compiled_module_has_what_mypyc_compiles_wrongly(path: Path) -> None:
    """An exception left behind as the one being handled; an `except` that raises because of its name."""
    assert list(subject.faults(path.read_text())) == []


@pytest.mark.parametrize(
    "block",
    [
        "try:\n  x()\n except E:\n  await y()",
        "try:\n  x()\n finally:\n  if z:\n   await y()",
        "try:\n  x()\n except* E:\n  await y()",
        "async with x():\n  pass",
        "try:\n  x()\n except E as e:\n  y()\n except F as e:\n  z()",
        "if x():\n  f()",
        "try:\n  x()\n finally:\n  async for a in y(): pass",
        "a = None\n try:\n  a = x()\n finally:\n  if a is None:\n   y()",
    ],
)
def test_each_such_place_is_found(block: str) -> None:
    """Whatever is between the handler and the await."""
    assert len(list(subject.faults(f"async def f():\n {block}\n"))) == 1


def test_what_awaits_in_the_body_alone_is_fine() -> None:
    """Handlers that do not wait leave nothing behind."""
    source = "async def f():\n try:\n  await x()\n except E:\n  y()\n else:\n  await z()\n finally:\n  y()\n"
    assert list(subject.faults(source)) == []


def test_a_method_that_calls_itself_is_found_and_one_that_calls_a_function_of_its_name_is_not() -> None:
    """Python ends endless recursion with an error, a compiled function ends the process."""
    faults = subject.faults("class A:\n def f(self):\n  self.f()\n def g(self):\n  g()\n")
    assert [line for line, _ in faults] == [3]


def test_no_compiled_class_has_a_base_that_is_not_compiled() -> None:
    """Its objects would take weak references and not end them."""
    assert list(subject.dangling(subject.texts())) == []


@pytest.mark.parametrize(
    ("first", "second", "bases"),
    [
        ("class A: pass\nclass B(A): pass", "from p.first import B\nclass C(B): pass", []),
        ("class A(Protocol): pass", "", []),
        ("@mypyc_attr(native_class=False)\nclass A(Exception): pass", "", []),
        ("class A(Exception): pass", "", ["A"]),
        ("class A(Generic[T]): pass", "", ["A"]),
        ("class A(metaclass=M): pass", "", ["A"]),
        ("import abc\nclass A(abc.ABC): pass\nclass B(A): pass", "", ["A", "B"]),
        ("class A(Protocol): pass\nclass B(A): pass", "", ["B"]),
        ("@mypyc_attr(native_class=False)\nclass A: pass", "from p.first import A\nclass B(A): pass", ["B"]),
        ("", "from elsewhere import A\nclass B(A): pass", ["B"]),
        ("def f():\n class A(Exception): pass", "", ["A"]),
    ],
)
def test_each_base_that_is_not_compiled_is_found(first: str, second: str, bases: list[str]) -> None:
    """In a module or across two, at any distance."""
    wrong = subject.dangling({"p.first": first, "p.second": second})
    assert [what.split("`")[1] for _, _, what in wrong] == bases


def test_what_cannot_be_compiled_here_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build without a C compiler says so instead of failing in the middle."""
    monkeypatch.setenv("CC", "/nowhere/cc -pthread")
    assert "/nowhere/cc" in subject.unable()
