"""Payloads read into the dataclass or TypedDict a handler names, field by field."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Mapping, MutableMapping, Sequence
from enum import Enum
from typing import Any, Final, Literal, NotRequired

from jfast_sync.errors import PayloadError
from jfast_sync.payload.encoding import encode, encode_value, path_text
from jfast_sync.payload.scalars import SCALARS, kind_of

__all__ = ["check_against", "check_type", "decode_into", "is_payload_type"]

_ANYTHING: Final = (Any, object)
_ARRAYS: Final = (list, tuple, Sequence)
_OBJECTS: Final = (dict, Mapping, MutableMapping)
_CHECKED_BYTES: Final = 64 * 1024 * 1024  # only so that a check ends; the configured limit is applied when stored

Path = tuple[str | int, ...]


def is_payload_type(annotation: Any) -> bool:
    """Say whether a whole payload can be read into it: a dataclass or a TypedDict."""
    return isinstance(annotation, type) and (dataclasses.is_dataclass(annotation) or _is_typed_dict(annotation))


def decode_into(annotation: Any, payload: Any) -> Any:
    """Read a stored payload into a dataclass or TypedDict, nested ones included.

    Fields come back as they were encoded: ``datetime``, ``date``, ``UUID`` and ``Decimal`` from their text, an ``Enum``
    from its value. Of a union the first member that fits is taken. Keys the type does not know are left out of a
    dataclass and kept in a TypedDict: a newer version may have enqueued it, and a tick adds ``scheduled_for``.

    Raises:
        PayloadError: a field is missing or of another type; the message names its path. ``ValueError`` and
            ``TypeError`` of a dataclass's ``__post_init__`` are reported the same way.
    """
    return _decoded(annotation, payload, strict=False)


def check_against(annotation: Any, payload: Any) -> dict[str, Any]:
    """Return the payload encoded, after making sure that :func:`decode_into` will read it and that no key is unknown.

    Raises:
        PayloadError: it does not fit; the message names the path.
    """
    plain = encode(payload, max_bytes=_CHECKED_BYTES)
    _decoded(annotation, plain, strict=True)
    return plain


def check_type(annotation: Any) -> None:
    """Make sure that every field of a dataclass or TypedDict can be read from JSON.

    Raises:
        PayloadError: one cannot, or its annotation cannot be resolved; the message names its path.
    """
    _check(annotation, (), set())


def _decoded(annotation: Any, payload: Any, *, strict: bool) -> Any:
    try:
        return _decode(annotation, payload, (), strict)
    except RecursionError:
        raise PayloadError("payload: nested too deeply for what is left of the Python stack") from None


def _check(annotation: Any, path: Path, seen: set[Any]) -> None:
    annotation = _core(annotation)
    if annotation in _ANYTHING or annotation in SCALARS or annotation is type(None):
        return
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if is_payload_type(annotation):
        if annotation not in seen:
            seen.add(annotation)
            for name, hint in _hints(annotation, path).items():
                _check(hint, (*path, name), seen)
    elif origin in (typing.Union, types.UnionType) or (origin or annotation) in _ARRAYS:
        for argument in arguments:
            if argument is not Ellipsis:
                _check(argument, path, seen)
    elif (origin or annotation) in _OBJECTS:
        _check_object(arguments, path, seen)
    elif origin is not Literal and not _is_enum(annotation):
        raise PayloadError(f"{path_text(path)}: a field of type {_named(annotation)} cannot be read from JSON")


def _check_object(arguments: tuple[Any, ...], path: Path, seen: set[Any]) -> None:
    if arguments and arguments[0] not in (str, Any):
        raise PayloadError(f"{path_text(path)}: the keys of a JSON object are str, not {_named(arguments[0])}")
    _check(arguments[1] if arguments else Any, path, seen)


def _decode(annotation: Any, value: Any, path: Path, strict: bool) -> Any:
    annotation = _core(annotation)
    if annotation in _ANYTHING:
        return value
    if annotation in SCALARS:
        return _scalar(annotation, value, path)
    if is_payload_type(annotation):
        return _record(annotation, value, path, strict)
    if _is_enum(annotation):
        return _member(annotation, value, path)
    if annotation is type(None):
        return _null(value, path)
    return _generic(annotation, value, path, strict)


def _generic(annotation: Any, value: Any, path: Path, strict: bool) -> Any:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _first_that_fits(arguments, value, path, strict)
    if origin is Literal:
        if not any(choice == value and type(choice) is type(value) for choice in arguments):
            raise _refused(path, f"one of {', '.join(map(repr, arguments))}", value)
        return value
    if (origin or annotation) in _ARRAYS:
        return _array(origin or annotation, arguments, value, path, strict)
    if not isinstance(value, dict):
        raise _refused(path, "an object", value)
    inner = arguments[1] if arguments else Any
    return {key: _decode(inner, item, (*path, key), strict) for key, item in value.items()}


def _null(value: Any, path: Path) -> None:
    if value is not None:
        raise _refused(path, "null", value)


def _scalar(annotation: Any, value: Any, path: Path) -> Any:
    read, expected = SCALARS[annotation]
    try:
        return read(value)
    except (ValueError, TypeError, ArithmeticError):
        raise _refused(path, expected, value) from None


def _member(annotation: type[Enum], value: Any, path: Path) -> Enum:
    for member in annotation:
        stored = encode_value(member.value)
        if stored == value and type(stored) is type(value):
            return member
    raise _refused(path, f"one of {', '.join(repr(encode_value(member.value)) for member in annotation)}", value)


def _first_that_fits(members: tuple[Any, ...], value: Any, path: Path, strict: bool) -> Any:
    failures = []
    for member in members:
        try:
            return _decode(member, value, path, strict)
        except PayloadError as exc:
            failures.append(exc)
    meant = [failure for member, failure in zip(members, failures, strict=True) if member is not type(None)]
    if len(meant) == 1:
        raise meant[0]
    raise _refused(path, " or ".join(_named(member) for member in members), value)


def _array(origin: Any, arguments: tuple[Any, ...], value: Any, path: Path, strict: bool) -> Any:
    if not isinstance(value, list):
        raise _refused(path, "an array", value)
    fixed = origin is tuple and arguments and arguments[-1] is not Ellipsis
    if fixed and len(arguments) != len(value):
        raise PayloadError(f"{path_text(path)}: expected {len(arguments)} items, got {len(value)}")
    kinds = arguments if fixed else (arguments[0] if arguments else Any,) * len(value)
    items = [_decode(kind, item, (*path, at), strict) for at, (kind, item) in enumerate(zip(kinds, value, strict=True))]
    return tuple(items) if origin is tuple else items


def _record(annotation: Any, value: Any, path: Path, strict: bool) -> Any:
    if not isinstance(value, dict):
        raise _refused(path, f"an object ({_named(annotation)})", value)
    hints = _hints(annotation, path)
    missing = [name for name in _required(annotation) if name not in value]
    if missing:
        raise PayloadError(f"{path_text((*path, missing[0]))}: missing; {_named(annotation)} has no default for it")
    unknown = value.keys() - hints.keys() - _computed(annotation)
    if strict and unknown:
        key = min(unknown)
        raise _unknown_key((*path, key), key, list(hints), annotation)
    known = {name: _decode(hints[name], item, (*path, name), strict) for name, item in value.items() if name in hints}
    if _is_typed_dict(annotation):
        return {**value, **known}
    try:
        return annotation(**known)
    except PayloadError:
        raise
    except (ValueError, TypeError) as exc:
        raise PayloadError(f"{path_text(path)}: {_named(annotation)} refused it: {exc}") from exc


def _unknown_key(path: Path, key: str, known: list[str], annotation: Any) -> PayloadError:
    nearest = difflib.get_close_matches(key[:80], known, n=1)
    meant = f"; did you mean {nearest[0]!r}?" if nearest else f"; it has {', '.join(known) or 'no fields'}"
    return PayloadError(f"{path_text(path)}: {_named(annotation)} has no such field{meant}")


def _computed(annotation: Any) -> set[str]:
    """Fields a dataclass fills by itself: an instance is encoded with them, and they are made anew when it is read."""
    if _is_typed_dict(annotation):
        return set()
    return {each.name for each in dataclasses.fields(annotation) if not each.init}


def _required(annotation: Any) -> list[str]:
    if _is_typed_dict(annotation):
        return _required_keys(annotation)
    lacking = dataclasses.MISSING
    return [
        each.name
        for each in dataclasses.fields(annotation)
        if each.init and each.default is lacking and each.default_factory is lacking
    ]


@functools.lru_cache(maxsize=1024)
def _required_keys(annotation: Any) -> list[str]:
    # Where annotations are strings the class itself takes NotRequired[...] for a required key.
    hints = typing.get_type_hints(annotation, include_extras=True)
    marks = {name: typing.get_origin(hint) for name, hint in hints.items()}
    required = annotation.__required_keys__
    return [
        name
        for name, mark in marks.items()
        if mark is typing.Required or (name in required and mark is not NotRequired)
    ]


def _hints(annotation: Any, path: Path) -> dict[str, Any]:
    try:
        return _hints_of(annotation)
    except (NameError, AttributeError, TypeError, SyntaxError) as exc:
        raise PayloadError(
            f"{path_text(path)}: the annotations of {_named(annotation)} cannot be resolved ({exc}); define "
            "what they name at the top of a module and import it outside of TYPE_CHECKING"
        ) from exc


@functools.lru_cache(maxsize=1024)
def _hints_of(annotation: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(annotation)
    if _is_typed_dict(annotation):
        return hints
    return {each.name: hints[each.name] for each in dataclasses.fields(annotation) if each.init}


def _core(annotation: Any) -> Any:
    """Look through Annotated, NewType and a ``type X = ...`` alias."""
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation


def _is_typed_dict(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, dict) and hasattr(annotation, "__required_keys__")


def _is_enum(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Enum)


def _named(annotation: Any) -> str:
    if annotation is type(None):
        return "None"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _refused(path: Path, expected: str, value: Any) -> PayloadError:
    return PayloadError(f"{path_text(path)}: expected {expected}, got {kind_of(value)}")
