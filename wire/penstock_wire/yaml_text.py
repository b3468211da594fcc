"""Reads the YAML that users write: a key that stands twice, and aliases that grow without bound, are refused.

PyYAML keeps the last of two equal keys, and a few hundred bytes of aliases of aliases are a document of
billions of values to whatever reads it next.
"""

from __future__ import annotations

from typing import Any

import yaml

MAX_ALIASED = 100_000
"""The most values that the aliases of a document may add to those that are written."""


def read(text: str | bytes) -> Any:
    """Read a document; None for one without content.

    Raises:
        yaml.YAMLError: it is not one document of YAML, has a key twice or too many aliases, or a value that
            cannot be made.
    """
    documents = read_all(text)
    if len(documents) > 1:
        raise yaml.YAMLError(f"expected one document, found {len(documents)}")
    return documents[0] if documents else None


def read_all(text: str | bytes) -> list[Any]:
    """Read the documents of a text; errors as for `read`."""
    documents = []
    try:
        loader = yaml.SafeLoader(text)
        try:
            while loader.check_node() and (node := loader.get_node()) is not None:
                sizes: dict[int, int] = {}
                size = _checked(node, sizes)
                if size - len(sizes) > MAX_ALIASED:
                    raise yaml.YAMLError(
                        f"expected aliases that add at most {MAX_ALIASED} values to the document that begins "
                        f"on line {_line(node)}, found more"
                    )
                documents.append(loader.construct_document(node))
        finally:
            loader.dispose()
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        # NB: PyYAML's constructors of dates and numbers raise whatever Python raises.
        raise yaml.YAMLError(str(error)) from error
    return documents


def _checked(node: yaml.Node, sizes: dict[int, int]) -> int:
    """The number of values of a node with its aliases followed; `sizes` has that of each node, by its id."""
    known = sizes.get(id(node))
    if known == 0:
        raise yaml.YAMLError(f"line {_line(node)}: expected a value that ends, found its own alias in it")
    if known is not None:
        return known
    sizes[id(node)] = 0
    size = 1
    if isinstance(node, yaml.SequenceNode):
        size += sum(_checked(each, sizes) for each in node.value)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    raise yaml.YAMLError(
                        f"line {_line(key)}: expected each key once, found {key.value[:100]!r} again, "
                        f"which is on line {lines[key.value]}"
                    )
                lines[key.value] = _line(key)
            size += _checked(key, sizes) + _checked(value, sizes)
    sizes[id(node)] = size
    return size


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
