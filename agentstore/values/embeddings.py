"""What texts mean, as vectors: the application's function, and how near two vectors are.

A vector is kept with length one, as 32-bit floats, little-endian: then the cosine of two is the sum
of their products. A document may have several, one after the other in the same bytes; the nearest
counts. With numpy, a batch is one product of a matrix; without it, the same in plain Python.

The invariant: the function is called outside of any transaction, and nothing that it gives is
kept before all of it was checked.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import operator
import re
import sys
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from sqlalchemy.util import await_only, greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

from agentstore.errors import EmbeddingFailed, InvalidEmbedding, InvalidInput, shown
from agentstore.values.validation import ROLES, choice
from agentstore.values.validation import key as checked_key

Function = Callable[[list[str]], Any]
"""From texts to as many vectors, or an awaitable of them."""

NOTHING = b""
"""The vectors of a document that has no text."""

WHOLE = "$"
"""The field that is all of a value, as JSON."""


class Embeddings:
    """How a store makes vectors of texts: the application's function, and its model's name.

    Examples:
        >>> def embed(texts: list[str]) -> list[list[float]]:
        ...     answer = client.embeddings.create(model="text-embedding-3-small", input=texts)
        ...     return [each.embedding for each in answer.data]
        >>> store = Store(url, embeddings=Embeddings(embed, model="3-small", dims=1536))

    Attributes:
        model: The name and version of the model.
        dims: How many numbers a vector has.
        fields: Which parts of a memory are embedded, each as a vector of its own; None means all
            its texts together, as one.
        batch: How many texts the function gets at most.
        roles: The roles of messages that are found by their meaning; none, unless they are named.
    """

    __slots__ = ("_function", "batch", "dims", "fields", "model", "roles")

    def __init__(
        self,
        function: Any,
        *,
        model: str,
        dims: int,
        fields: Sequence[str] | None = None,
        batch: int = 100,
        roles: Sequence[str] = (),
    ) -> None:
        """Take a function, for any thread.

        Args:
            function: Gets a list of texts and gives a vector for each. It may be a coroutine
                function, for an ``AsyncStore``; one that is not runs in a thread there. An object
                with ``embed_documents``, as LangChain's, is taken as it is. How long it may take
                is its own affair: give its client a timeout.
            model: Vectors of other names are never compared with these. Give another name when
                the vectors of the same texts change.
            dims: The length of each vector, up to 16,000.
            fields: Paths such as ``text``, ``notes[*].text`` or ``$``, as in LangGraph.
            batch: From 1 to 10,000.
            roles: Such as ``("user", "assistant")``. A vector is mostly larger than a message.

        Raises:
            InvalidInput: One of these cannot be.
        """
        if not callable(function) and not hasattr(function, "embed_documents"):
            raise InvalidInput(
                "function must take a list of texts and give their vectors, or be an object with "
                f"embed_documents(), not {shown(function)}."
            )
        for name, number, most in (("dims", dims, 16_000), ("batch", batch, 10_000)):
            if type(number) is not int or not 1 <= number <= most:
                raise InvalidInput(
                    f"{name} must be a whole number from 1 to {most}, not {shown(number)}."
                )
        self._function = function
        self.model = checked_key("model", model)
        self.dims = dims
        self.fields = None if fields is None else fields_of("fields", fields)
        self.batch = batch
        self.roles = tuple(choice("a role", role, ROLES) for role in fields_of("roles", roles))

    @classmethod
    def of(cls, given: Any) -> Embeddings:
        """Take what others have: these, or LangGraph's ``{"embed": ..., "dims": ...}``.

        The name of the model is ``given["model"]``, else that of the embedding object.

        Raises:
            InvalidInput: It is something else.
        """
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping) or "embed" not in given or "dims" not in given:
            raise InvalidInput(
                'embeddings must be Embeddings, or a dict with "embed" and "dims", not '
                f"{shown(given)}."
            )
        function = given["embed"]
        if isinstance(function, str):
            raise InvalidInput(
                "embed must be a function or an object, not a str. For a provider's string pass "
                'langchain.embeddings.init_embeddings("provider:model").'
            )
        named = (getattr(function, name, None) for name in ("model", "model_name", "__qualname__"))
        model = given.get("model") or next((each for each in named if isinstance(each, str)), "")
        model = model or type(function).__qualname__
        return cls(function, model=model, dims=given["dims"], fields=given.get("fields") or [WHOLE])

    def __repr__(self) -> str:
        """Name the model."""
        return f"Embeddings(model={self.model!r}, dims={self.dims})"

    def vectors(self, texts: Sequence[str], *, query: bool = False) -> list[bytes]:
        """Ask the function for vectors; in a greenlet, without holding up the event loop.

        Args:
            texts: Of what.
            query: Whether they are looked for; some models tell questions from documents.

        Raises:
            EmbeddingFailed: The function raised something.
            InvalidEmbedding: It gave something else than vectors.
            InvalidInput: A text is empty, or the function has to be awaited here.
        """
        if not all(text.strip() for text in texts):
            raise InvalidInput("An empty text has no meaning. Pass a text with a word in it.")
        found: list[bytes] = []
        for start in range(0, len(texts), self.batch):
            batch = [*texts[start : start + self.batch]]
            try:
                if in_greenlet():
                    given = _listed(await_only(self._awaited(batch, query)))
                else:
                    given = self._called(batch, query)
            except (EmbeddingFailed, InvalidInput):
                raise
            except Exception as error:
                raise EmbeddingFailed(self.model, type(error).__name__) from error
            found += self._checked(batch, given)
        return found

    async def avectors(self, texts: Sequence[str], *, query: bool = False) -> list[bytes]:
        """Do the same for coroutines."""
        return await greenlet_spawn(self.vectors, texts, query=query)

    def _called(self, texts: list[str], query: bool) -> Any:
        function = self._function
        if hasattr(function, "embed_documents"):
            if query:
                return [*map(function.embed_query, texts)]
            return _listed(function.embed_documents(texts))
        given = _listed(function(texts))
        if inspect.isawaitable(given):
            if inspect.iscoroutine(given):
                given.close()
            raise InvalidInput(
                "This embedding function has to be awaited. Use an AsyncStore, or pass a plain "
                "function."
            )
        return given

    async def _awaited(self, texts: list[str], query: bool) -> Any:
        function = self._function
        if query and hasattr(function, "aembed_query"):
            return [await function.aembed_query(text) for text in texts]
        if not query and hasattr(function, "aembed_documents"):
            return await function.aembed_documents(texts)
        called = getattr(function, "__call__", None)  # noqa: B004 - an object may have its own
        if any(map(inspect.iscoroutinefunction, (function, called))):
            return await function(texts)
        if hasattr(function, "embed_documents"):
            return await asyncio.to_thread(self._called, texts, query)
        given = await asyncio.to_thread(lambda: _listed(function(texts)))
        return await given if isinstance(given, Awaitable) else given

    def _checked(self, texts: Sequence[str], given: Any) -> list[bytes]:
        try:
            vectors = [*given]
        except TypeError:
            raise self._invalid(f"{shown(given)} instead of a list of vectors") from None
        if len(vectors) != len(texts):
            raise self._invalid(f"{len(vectors)} vectors for {len(texts)} texts")
        return [*map(self.packed, vectors)]

    def packed(self, vector: Any) -> bytes:
        """Give a vector as it is kept; raises InvalidEmbedding."""
        try:
            if isinstance(vector, bytes | bytearray):  # of which an array makes what it wants
                raise TypeError
            numbers = array("d", vector)
        except (TypeError, ValueError, OverflowError):
            raise self._invalid("a vector that is no list of numbers") from None
        if len(numbers) != self.dims:
            raise self._invalid(f"a vector of {len(numbers)} numbers")
        length = math.hypot(*numbers)
        if not math.isfinite(length):
            raise self._invalid("a vector with a number that is not finite")
        packed = array("f", (number / length for number in numbers) if length else numbers)
        if sys.byteorder == "big":
            packed.byteswap()
        return packed.tobytes()

    def _invalid(self, problem: str) -> InvalidEmbedding:
        return InvalidEmbedding(self.model, self.dims, problem)

    def texts_of(self, value: Any, fields: Sequence[str] | None) -> list[str]:
        """Give the texts of a document that are embedded, each for a vector of its own.

        Args:
            value: JSON.
            fields: Those of the document; None means ``self.fields``, an empty list none.
        """
        fields = self.fields if fields is None else fields
        if fields is None:
            texts = ["\n".join(strings_in(value))]
        else:
            texts = [text for field in fields for text in _at(value, _tokens(field))]
        return [text for text in texts if text.strip()]


@dataclass(frozen=True, slots=True)
class Embedded:
    """What is kept of a document's meaning.

    Attributes:
        embeddings: What made the vectors; None on a store without embeddings.
        fields: Which the document asks for: None for the store's, an empty tuple for none.
        vectors: One after the other; None if they have yet to be made.
    """

    embeddings: Embeddings | None
    fields: tuple[str, ...] | None
    vectors: bytes | None


@dataclass(frozen=True, slots=True)
class Question:
    """A query whose vector is known.

    Attributes:
        by: ``meaning``, or ``both``.
        embeddings: Whose model it is.
        vector: Its own.
    """

    by: str
    embeddings: Embeddings
    vector: bytes


def _listed(given: Any) -> Any:
    """Have a generator work now, where it may fail and holds up nobody; leave all else as it is."""
    return [*given] if isinstance(given, Iterator) else given


def fields_of(name: str, value: object) -> tuple[str, ...]:
    """Require a list of names; raises InvalidInput."""
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise InvalidInput(f"{name} must be a list of names, not {shown(value)}.")
    return tuple(checked_key(f"a name in {name}", each) for each in value)


def strings_in(value: Any) -> Iterator[str]:
    """Go over the texts in a JSON object or list, but not the keys."""
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict | list):
            yield from strings_in(each)


_TOKEN = re.compile(r"\[[^\]]*\]|\{[^}]*\}|[^.\[{]+")


def _tokens(path: str) -> tuple[str, ...]:
    return () if path == WHOLE else tuple(_TOKEN.findall(path))


def _at(value: Any, path: Sequence[str]) -> Iterator[str]:
    """Go over the texts at a path; what is no text, as JSON says it."""
    if not path:
        if isinstance(value, dict | list):
            yield json.dumps(value, sort_keys=True, ensure_ascii=False)
        elif value is not None:
            yield str(value)
        return
    step, rest = path[0], path[1:]
    if step == "*" and isinstance(value, dict):
        below = [(each, rest) for each in value.values()]
    elif step in ("*", "[*]") and isinstance(value, list):
        below = [(each, rest) for each in value]
    elif step[0] == "[" and isinstance(value, list):
        number = step[1:-1]
        inside = number.lstrip("-").isdecimal() and -len(value) <= int(number) < len(value)
        below = [(value[int(number)], rest)] if inside else []
    elif step[0] == "{":
        below = [(value, _tokens(each.strip())) for each in step[1:-1].split(",") if each.strip()]
    else:
        below = [(value[step], rest)] if isinstance(value, dict) and step in value else []
    for each, following in below:
        yield from _at(each, following)


# How near vectors are.


@lru_cache(maxsize=1)
def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def nearness(question: bytes, documents: Sequence[bytes]) -> list[float] | None:
    """Give the cosine of a vector and the nearest of each document's.

    Args:
        question: One vector.
        documents: Each has one or several.

    Returns:
        None if one has no whole number of vectors.
    """
    size = len(question)
    lengths = [*map(len, documents)]
    several = {*lengths} - {size}
    if any(not length or length % size for length in several):
        return None
    if (numpy := _numpy()) is not None and documents:
        wanted = numpy.frombuffer(question, "<f4")
        rows = numpy.frombuffer(b"".join(documents), "<f4").reshape(-1, len(wanted))
        # By ``@`` equal rows have not always equal products, and would not be the newest first.
        found = numpy.einsum("ij,j->i", rows, wanted)
        if several:
            counts = [length // size for length in lengths]
            found = numpy.maximum.reduceat(found, numpy.cumsum([0, *counts[:-1]]))
        return cast("list[float]", found.tolist())
    asked = _floats(question)
    return [
        max(
            sum(map(operator.mul, asked, _floats(each[start : start + size])))
            for start in range(0, len(each), size)
        )
        for each in documents
    ]


def _floats(packed: bytes) -> array[float]:
    numbers = array("f")
    numbers.frombytes(packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
