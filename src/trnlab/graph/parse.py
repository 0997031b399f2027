# SPDX-License-Identifier: Apache-2.0
"""Graphs from the text that `text.to_text` writes. Errors are GraphErrors (TRN307) with the line of the text."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import numpy as np

from trnlab.errors import GraphError, Location
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, TensorType, Value
from trnlab.graph.ops import OPS
from trnlab.graph.text import FROM_RESULT
from trnlab.numerics.dtypes import DType, bool_, dtype

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*)
      | (?P<type>tensor<[\w]+>)
      | (?P<value>%[\w.]+)
      | (?P<graph>@[A-Za-z_][\w.]*)
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<hex>0x[0-9a-f]+)
      | (?P<number>[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)(?![\w.]))
      | (?P<word>[A-Za-z_][\w.]*)
      | (?P<punct>[@(){}\[\]=:,])""",
    re.VERBOSE,
)


def parse(source: str, name: str = "<text>") -> Graph:
    """The graph that `source` describes, verified. `name` stands for a file in error messages."""
    parser = _Parser(source, name)
    try:
        return parser.graph()
    except (ValueError, TypeError, KeyError, OverflowError, MemoryError, RecursionError) as error:
        parser.at = min(parser.at, len(parser.tokens) - 1)
        parser.fail(f"numbers and words that fit each other ({type(error).__name__}: {str(error)[:80]})")


class _Parser:
    """Recursive descent over a list of (kind, text, offset)."""

    def __init__(self, source: str, name: str) -> None:
        self.source, self.name, self.at = source, name, 0
        self.tokens: list[tuple[str, str, int]] = []
        self.values: dict[str, Value] = {}
        offset = 0
        while offset < len(source):
            match = _TOKEN.match(source, offset)
            if match is None:
                self.tokens.append(("unknown", source[offset : offset + 10], offset))
                break
            if match.lastgroup != "skip":
                self.tokens.append((str(match.lastgroup), match.group(), offset))
            offset = match.end()
        self.tokens.append(("end", "the end", len(source)))

    # -- tokens -------------------------------------------------------------------------------------------------
    def fail(self, wanted: str) -> NoReturn:
        _, text, offset = self.tokens[self.at]
        raise GraphError(
            "cannot read the graph", code="TRN307", where=self.line(offset), limit=wanted, got=repr(text)
        )

    def line(self, offset: int) -> Location:
        start = self.source.rfind("\n", 0, offset) + 1
        text = self.source[start:].split("\n", 1)[0][:120]
        return Location(self.name, self.source.count("\n", 0, offset) + 1, text=text)

    def next(self, kind: str, text: str | None = None) -> str:
        """The next token, which must be of this kind (and be this text)."""
        found, word, _ = self.tokens[self.at]
        if found != kind or text not in (None, word):
            self.fail(text or kind)
        self.at += 1
        return word

    def skip(self, text: str) -> bool:
        """Whether the next token is `text`; then it is taken."""
        if self.tokens[self.at][1] != text or self.tokens[self.at][0] == "string":
            return False
        self.at += 1
        return True

    def peek(self) -> str:
        return self.tokens[self.at][0]

    def string(self) -> str:
        return str(json.loads(self.next("string")))

    # -- the graph ----------------------------------------------------------------------------------------------
    def graph(self) -> Graph:
        self.next("word", "graph")
        b = GraphBuilder(self.string() if self.skip("@") else self.next("graph")[1:])
        self.next("punct", "(")
        while not self.skip(")"):
            label = self.fresh()
            self.next("punct", ":")
            tensor = self.type()
            self.define(label, b.input(_hint(label), tensor.shape, tensor.dtype))
            self.skip(",")
        self.next("punct", "{")
        while not self.skip("return"):
            self.op(b)
        while not self.skip("}"):
            self.output(b)
        self.next("end")
        return b.build()

    def fresh(self) -> str:
        """A name that no value has yet."""
        label = self.next("value")
        if label in self.values:
            self.at -= 1
            self.fail("a name that is not taken")
        return label

    def define(self, label: str, value: Value) -> None:
        value.name = _hint(label)
        self.values[label] = value

    def read(self) -> Value:
        label = self.next("value")
        if label not in self.values:
            self.at -= 1
            self.fail("a value defined above")
        return self.values[label]

    def output(self, b: GraphBuilder) -> None:
        value = self.read()
        self.next("word", "as")
        name = self.string()
        b.output(value, name, self.read() if self.skip("into") else None)
        self.skip(",")

    def op(self, b: GraphBuilder) -> None:
        """results = name [literal] [operands] [{attributes}] : types [loc(...)]."""
        start = self.tokens[self.at][2]
        labels = [self.fresh()]
        while self.skip(","):
            labels.append(self.fresh())
        self.next("punct", "=")
        name = self.next("word")
        if name in ("custom_call", "loop"):
            self.at -= 1
            self.fail(f"an op that text describes whole; the code of a {name} is not in it")
        literal = self.literal() if name == "constant" else None
        operands = []
        while self.peek() == "value":
            operands.append(self.read())
            self.skip(",")
        attrs = self.attributes() if self.skip("{") else {}
        self.next("punct", ":")
        types = [self.type()]
        while self.skip(","):
            types.append(self.type())
        for key in FROM_RESULT:
            if name in OPS and key in OPS[name].attrs:
                attrs[key] = getattr(types[0], key)
        if literal is not None:
            attrs["value"] = _constant(literal, types[0])
        b.loc, b.origin = self.location() if self.skip("loc") else (None, "")
        self.append(b, name, operands, attrs, labels, types, start)

    def append(
        self,
        b: GraphBuilder,
        name: str,
        operands: list[Value],
        attrs: dict[str, Any],
        labels: list[str],
        types: list[TensorType],
        start: int,
    ) -> None:
        try:
            results = b.append(name, operands, attrs).results
        except GraphError as error:
            error.where = self.line(start)
            raise
        if [v.type for v in results] != types or len(labels) != len(results):
            made = ", ".join(str(v.type) for v in results)
            raise GraphError(f"{name}: other results", code="TRN307", where=self.line(start), limit=made, got=types)
        for label, value in zip(labels, results):
            self.define(label, value)

    def attributes(self) -> dict[str, Any]:
        attrs: dict[str, Any] = {}
        while not self.skip("}"):
            key = self.next("word")
            self.next("punct", "=")
            attrs[key] = self.attribute()
            self.skip(",")
        return attrs

    def attribute(self) -> Any:
        if self.skip("["):
            items = []
            while not self.skip("]"):
                items.append(int(self.next("number")))
                self.skip(",")
            return tuple(items)
        if self.peek() == "number":
            text = self.next("number")
            return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
        word = self.next("word")
        return word == "true" if word in ("true", "false") else word

    def literal(self) -> Any:
        """A number, a nested list of numbers, or the bytes of an array."""
        if self.skip("["):
            items = []
            while not self.skip("]"):
                items.append(self.literal())
                self.skip(",")
            return items
        if self.peek() == "hex":
            return bytes.fromhex(self.next("hex")[2:])
        if self.peek() == "word":
            return {"true": 1.0, "false": 0.0}.get(self.next("word"))
        text = self.next("number")
        return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)

    def type(self) -> TensorType:
        *sizes, name = self.next("type")[len("tensor<") : -1].split("x")
        try:
            return TensorType(tuple(map(int, sizes)), dtype(name))
        except (KeyError, ValueError):
            self.at -= 1
            self.fail("a tensor type")

    def location(self) -> tuple[Location | None, str]:
        self.next("punct", "(")
        first, rest = self.string(), ["", "", ""]
        if self.skip(")"):
            return None, first
        self.next("punct", ":")
        line = int(self.next("number"))
        for i in range(3):
            if self.peek() == "string":
                rest[i] = self.string()
        self.next("punct", ")")
        return Location(first, line, rest[0], rest[1]), rest[2]


def _hint(label: str) -> str:
    return "" if label[1:].isdigit() else label[1:]


def _constant(literal: Any, tensor: TensorType) -> Any:
    """The `value` attribute from what was written."""
    dt: DType = tensor.dtype
    if isinstance(literal, bytes):
        return _frozen(np.frombuffer(literal, dt.numpy).reshape(tensor.shape))
    if isinstance(literal, list):
        return _frozen(
            np.array(literal, np.float64 if dt.is_float else np.int64).astype(dt.numpy).reshape(tensor.shape)
        )
    if dt is bool_:
        return bool(literal)
    return float(np.float32(literal).astype(dt.numpy)) if dt.is_float else int(literal)


def _frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array
