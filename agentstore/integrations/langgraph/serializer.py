"""The serializer of both savers: LangGraph's own, which makes allowed classes only."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import ormsgpack
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_METHOD_SINGLE_ARG,
    EXT_PYDANTIC_V1,
    EXT_PYDANTIC_V2,
    JsonPlusSerializer,
)
from pydantic import BaseModel, TypeAdapter

from agentstore.errors import InvalidInput, TypeNotAllowed, shown

SAFE_TYPES: frozenset[tuple[str, ...]] = frozenset()
SAFE_METHODS: frozenset[tuple[str, str, str]] = frozenset()
with suppress(ImportError):  # LangGraph has no public names for them; without them less is allowed
    from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_METHODS as SAFE_METHODS
    from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES as SAFE_TYPES

Allowed = type | tuple[str, str]
"""A class, or its module and its name."""

_DATA = {
    "langchain_core.agents": ("AgentAction", "AgentActionMessageLog", "AgentFinish", "AgentStep"),
    "langchain_core.documents.base": ("Blob",),
    "langchain_core.outputs.chat_generation": ("ChatGeneration", "ChatGenerationChunk"),
    "langchain_core.outputs.chat_result": ("ChatResult",),
    "langchain_core.outputs.generation": ("Generation", "GenerationChunk"),
    "langchain_core.outputs.llm_result": ("LLMResult",),
    "langchain_core.outputs.run_info": ("RunInfo",),
    "langchain_core.prompt_values": ("StringPromptValue", "ChatPromptValue"),
    "langgraph.types": ("CacheKey", "CachePolicy", "RetryPolicy"),
}
"""Classes that hold data, beside those that LangGraph's serializer always makes."""

_MESSAGES = (AIMessage, HumanMessage, SystemMessage, ToolMessage)
_FIELDS: dict[Any, tuple[str, str, tuple[str, ...]]] = {
    kind: (kind.__module__, kind.__name__, tuple(kind.model_fields)) for kind in _MESSAGES
}
_COMMON = ("content", "additional_kwargs", "response_metadata", "type", "name", "id")
_OWN = {
    "ai": ("tool_calls", "invalid_tool_calls", "usage_metadata"),
    "tool": ("tool_call_id", "artifact", "status"),
}


def _is_known(kind: type[BaseModel]) -> bool:
    """Say whether nothing happens when one is validated but what ``_are_valid`` knows."""
    decorators = kind.__pydantic_decorators__
    own = {*decorators.model_validators, *decorators.field_validators}
    own |= {*decorators.validators, *decorators.root_validators}
    known = own <= {"_backwards_compat_tool_calls", "coerce_args"}
    return known and not kind.__private_attributes__ and kind.__pydantic_post_init__ is None


_KINDS = {
    (begins := b"\x94" + ormsgpack.packb(module) + ormsgpack.packb(name))[1:2]: (
        begins,
        kind,
        kind.__pydantic_validator__.validate_python,
        word := kind.model_fields["type"].default,
        _COMMON + _OWN.get(word, ()) if _is_known(kind) else (),
    )
    for kind, (module, name, _) in _FIELDS.items()
}
"""How messages of each class are made. What is written of one begins with its class, in an array of
four: their modules' names differ in length, and so in the second byte."""

_NON_STR_KEYS = ormsgpack.OPT_NON_STR_KEYS
_OPTION = (
    _NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_REPLACE_SURROGATES
)
"""With which LangGraph's own serializer writes."""

_LANGGRAPH = JsonPlusSerializer()


def _written(obj: Any) -> Any:
    """Write what msgpack does not know: a message of plain values from where it has them."""
    if (known := _FIELDS.get(type(obj))) is not None:
        module, name, fields = known
        values = obj.__dict__
        if (*values,) == fields:
            if obj.__pydantic_extra__:
                values = {**values, **obj.__pydantic_extra__}
            try:
                plain = ormsgpack.packb((module, name, values, _READ_BY), option=_OPTION)
                return ormsgpack.Ext(EXT_PYDANTIC_V2, plain)
            except ormsgpack.MsgpackEncodeError:
                pass  # LangGraph knows what is not plain
    _, written = _LANGGRAPH.dumps_typed(obj)
    return ormsgpack.unpackb(written, ext_hook=ormsgpack.Ext, option=_NON_STR_KEYS)


_READ_BY = "model_validate_json"


def _are_valid(kind: str, values: dict[str, Any]) -> bool:
    """Say whether validation, which takes most of the time, gives a message's values as they are.

    Args:
        kind: The message's type.
        values: By the names in ``_COMMON`` and ``_OWN``; the usage is validated here.
    """
    content, additional, metadata, word, name, id, *own = values.values()
    if (
        word != kind
        or type(content) is not str
        or type(additional) is not dict
        or type(metadata) is not dict
        or not (name is None or type(name) is str)
        or not (id is None or type(id) is str)
    ):
        return False
    if kind == "tool":
        return type(own[0]) is str and own[2] in ("success", "error")
    if kind != "ai":
        return True
    calls, invalid, usage = own
    if invalid != [] or type(calls) is not list or additional.get("tool_calls"):
        return False
    if usage is not None:
        values["usage_metadata"] = _usage(usage)
    return all(map(_is_valid_call, calls))


def _is_valid_call(call: dict[str, Any]) -> bool:
    if (*call,) != ("name", "args", "id", "type"):
        return False
    name, args, id, word = call.values()
    return (
        type(name) is str
        and type(args) is dict
        and {*map(type, args)} <= {str}
        and (id is None or type(id) is str)
        and word == "tool_call"
    )


_annotation: Any = AIMessage.model_fields["usage_metadata"].annotation
_usage = TypeAdapter(_annotation, config=AIMessage.model_config).validator.validate_python
_new = object.__new__
_SLOTS = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
_set_values, _set_names, _set_extra, _set_private = (vars(BaseModel)[n].__set__ for n in _SLOTS)

_refused: ContextVar[list[str] | None] = ContextVar("refused", default=None)


def _note_refused(event: SerdeEvent) -> None:
    refused = _refused.get()
    if refused is not None and event["kind"].endswith("_blocked"):
        names = event["module"], event["name"], event.get("method")
        refused.append(".".join(str(name) for name in names if name is not None))


register_serde_event_listener(_note_refused)


class AllowedSerializer(JsonPlusSerializer):
    """LangGraph's serializer, which makes objects of allowed classes only.

    What is stored names a class, or any function, and LangGraph's calls it. Here reading a value
    that names another one raises ``TypeNotAllowed``, and nothing of it is called.

    Chat messages are written and made without the layers in between. The bytes are those that
    LangGraph's own serializer writes, and so are the messages.
    """

    def __init__(self, allowed: Iterable[Allowed] = ()) -> None:
        """Allow what LangGraph and LangChain need, and more.

        Args:
            allowed: Classes of the application that its state holds, or pairs of a module and a
                name.

        Raises:
            InvalidInput: ``allowed`` holds something else.
        """
        if not isinstance(allowed, list | tuple | set | frozenset):
            raise InvalidInput("allowed must be a list of classes, or of pairs of str.")
        names: set[tuple[str, ...]] = {(m, name) for m, those in _DATA.items() for name in those}
        for each in allowed:
            pair = isinstance(each, tuple | list) and [*map(type, each)] == [str, str]
            if pair or isinstance(each, type):
                names.add(_name_of(each))
            else:
                raise InvalidInput(
                    "allowed must hold classes, or pairs of a module and a name, such as "
                    f"('my.models', 'Plan'), not {shown(each)}."
                )
        self._named = names
        parts = [(*module.split("."), name) for module, name in names]
        super().__init__(allowed_msgpack_modules=names, allowed_json_modules=parts)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Write a value."""
        if obj is None or isinstance(obj, bytes | bytearray):
            return super().dumps_typed(obj)
        return "msgpack", ormsgpack.packb(obj, default=_written, option=_OPTION)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Read a value.

        Raises:
            TypeNotAllowed: It names what is not allowed.
        """
        kind, stored = data
        if kind == "json":
            json.loads(stored, object_hook=self._check_json)
        refused: list[str] = []
        token = _refused.set(refused)
        try:
            if kind == "msgpack":
                return ormsgpack.unpackb(stored, ext_hook=self._made, option=_NON_STR_KEYS)
            return super().loads_typed(data)
        finally:
            _refused.reset(token)
            if refused:  # also where what was left in its place led to another error
                raise TypeNotAllowed(refused[0])

    def _made(self, code: int, data: bytes) -> Any:
        """Make an object; a message as its class would, without the way through its parents."""
        known = _KINDS.get(data[1:2]) if code == EXT_PYDANTIC_V2 else None
        if known is not None and data.startswith(known[0]):
            _, kind, validate, word, fields = known
            try:
                values = ormsgpack.unpackb(data, ext_hook=self._made, option=_NON_STR_KEYS)[2]
                new = _new(kind)
                if (*values,) == fields and _are_valid(word, values):
                    _set_values(new, values)
                    _set_names(new, {*fields})
                    _set_extra(new, {})
                    _set_private(new, None)
                    return new
                if "content_blocks" not in values:
                    validate(values, self_instance=new)
                    return new
            except Exception:  # noqa: BLE001, S110 - LangGraph decides
                pass
        return super().loads_typed(("msgpack", ormsgpack.packb(ormsgpack.Ext(code, data))))

    def with_msgpack_allowlist(
        self, extra_allowlist: Iterable[tuple[str, ...] | type]
    ) -> AllowedSerializer:
        """Allow also what a graph names: LangGraph asks, if it is strict."""
        extra = [*extra_allowlist]
        clone = super().with_msgpack_allowlist(extra)
        assert isinstance(clone, AllowedSerializer)
        clone._named = self._named | {_name_of(each) for each in extra}
        return clone

    def allows(self, module: object, name: object, method: object = None) -> bool:
        """Say whether a stored value may name this."""
        if method is not None:
            return (module, name, method) in SAFE_METHODS
        return (module, name) in SAFE_TYPES or (module, name) in self._named

    def check(self, kind: str, data: bytes) -> None:
        """Check a value that is not to be made.

        Raises:
            TypeNotAllowed: It names what is not allowed.
            ValueError: It is not of its kind.
        """
        refused: list[str] = []

        def look(code: int, data: bytes) -> None:
            held = ormsgpack.unpackb(data, ext_hook=look, option=ormsgpack.OPT_NON_STR_KEYS)
            if code in _NAMING and isinstance(held, list) and len(held) > 1:
                named = [*held[:2], *(held[3:4] if code == EXT_METHOD_SINGLE_ARG else ())]
                if not self.allows(*named):
                    refused.append(".".join(map(str, named)))

        if kind == "json":
            json.loads(data, object_hook=self._check_json)
        elif kind == "msgpack":
            try:
                look(-1, data)
            finally:
                if refused:  # also where something after it cannot be read
                    raise TypeNotAllowed(refused[0])

    def _check_json(self, value: dict[str, Any]) -> dict[str, Any]:
        names = value.get("id")
        makes = value.get("lc") == 2 and value.get("type") == "constructor"
        if makes and isinstance(names, list) and names:
            *module, name = map(str, names)
            if not self.allows(".".join(module), name):
                raise TypeNotAllowed(".".join([*module, name]))
        return value


def _name_of(each: type | tuple[str, ...]) -> tuple[str, ...]:
    return (each.__module__, each.__name__) if isinstance(each, type) else tuple(each)


_NAMING = (
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_METHOD_SINGLE_ARG,
    EXT_PYDANTIC_V1,
    EXT_PYDANTIC_V2,
)


def written_here() -> bool:
    """Say whether messages are written here, and as by the LangGraph that is installed."""
    every: list[Any] = [kind("text", id="1") for kind in _MESSAGES[:3]]
    every.append(ToolMessage("text", tool_call_id="1"))
    written = AllowedSerializer().dumps_typed(every)
    return bool(_FIELDS) and written == _LANGGRAPH.dumps_typed(every)


if not written_here():  # another version: it writes and makes them itself
    _FIELDS.clear()
    _KINDS.clear()
