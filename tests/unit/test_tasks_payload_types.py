"""Payloads read into dataclasses and TypedDicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NewType, NotRequired, Optional, TypedDict
from uuid import UUID

import pytest

from jfast_sync.errors import PayloadError
from jfast_sync.payload import check_against, check_type, decode_into, encode

InvoiceId = NewType("InvoiceId", int)


class Kind(Enum):
    NEW = "new"
    SINCE = date(2026, 1, 1)


class Level(IntEnum):
    LOW = 1


@dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal
    note: str | None = None


@dataclass(frozen=True)
class Invoice:
    id: InvoiceId
    lines: list[Line]
    made: datetime
    due: date
    key: UUID
    kind: Kind
    level: Level = Level.LOW
    ratio: float = 1.0
    paid: bool = False
    pair: tuple[int, str] = (1, "a")
    many: tuple[int, ...] = ()
    names: Mapping[str, int] = field(default_factory=dict)
    mode: Literal["fast", 2] = "fast"
    either: int | UUID | None = None
    old: Optional[int] = None  # noqa: UP045 - the older spelling works too
    anything: Any = None
    plain: dict = field(default_factory=dict)
    rest: Sequence[str] = ()
    size: Annotated[int, "bytes"] = 0


@dataclass
class Node:
    value: int
    children: list[Node] = field(default_factory=list)


class Order(TypedDict):
    id: int
    at: NotRequired[datetime]


INVOICE = Invoice(
    id=InvoiceId(7),
    lines=[Line("x", Decimal("1.10")), Line("y", Decimal(2), "gift")],
    made=datetime(2026, 1, 1, tzinfo=UTC),
    due=date(2026, 2, 1),
    key=UUID(int=5),
    kind=Kind.SINCE,
    many=(1, 2),
    names={"a": 1},
    mode=2,
    either=UUID(int=6),
    anything=[{"a": None}],
    plain={"b": [1]},
    rest=["c"],
)


def test_a_dataclass_comes_back_as_it_was() -> None:
    check_type(Invoice)
    assert decode_into(Invoice, encode(INVOICE)) == INVOICE
    assert check_against(Invoice, INVOICE) == encode(INVOICE)


def test_a_recursive_dataclass() -> None:
    check_type(Node)
    tree = Node(1, [Node(2), Node(3, [Node(4)])])
    assert decode_into(Node, encode(tree)) == tree


def test_a_typed_dict_is_converted_and_keeps_other_keys() -> None:
    check_type(Order)
    stored = {"id": 1, "at": "2026-01-01T00:00:00+00:00", "scheduled_for": "x"}
    assert decode_into(Order, stored) == {"id": 1, "at": datetime(2026, 1, 1, tzinfo=UTC), "scheduled_for": "x"}
    assert decode_into(Order, {"id": 1}) == {"id": 1}


def refusal(annotation: Any, payload: Any) -> str:
    with pytest.raises(PayloadError) as caught:
        decode_into(annotation, payload)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "7"}, "payload.id: expected a whole number, got a text"),
        ({"id": True}, "payload.id: expected a whole number, got true or false"),
        ({"id": 1.0}, "payload.id: expected a whole number, got a number with a fraction"),
        ({"lines": {}}, "payload.lines: expected an array, got an object"),
        ({"lines": [{"sku": "x"}]}, "payload.lines[0].price: missing; Line has no default for it"),
        (
            {"lines": [{"sku": "x", "price": 1.5}]},
            "payload.lines[0].price: expected a decimal number as text, got a number",
        ),
        (
            {"lines": [{"sku": "x", "price": "NaN"}]},
            "payload.lines[0].price: expected a decimal number as text, got a text",
        ),
        (
            {"lines": [{"sku": "x", "price": "1", "note": 5}]},
            "payload.lines[0].note: expected a text, got a whole number",
        ),
        ({"lines": ["x"]}, "payload.lines[0]: expected an object (Line), got a text"),
        (
            {"made": "2026-01-01T00:00:00"},
            "payload.made: expected a date and time with time zone, in ISO 8601, got a text",
        ),
        ({"due": "soon"}, "payload.due: expected a date in ISO 8601, got a text"),
        ({"key": 5}, "payload.key: expected a UUID, got a whole number"),
        ({"kind": "old"}, "payload.kind: expected one of 'new', '2026-01-01', got a text"),
        ({"level": True}, "payload.level: expected one of 1, got true or false"),
        ({"ratio": "1"}, "payload.ratio: expected a number, got a text"),
        ({"ratio": True}, "payload.ratio: expected a number, got true or false"),
        ({"paid": 1}, "payload.paid: expected true or false, got a whole number"),
        ({"pair": [1]}, "payload.pair: expected 2 items, got 1"),
        ({"many": [1, None]}, "payload.many[1]: expected a whole number, got null"),
        ({"names": {"a": "b"}}, "payload.names.a: expected a whole number, got a text"),
        ({"mode": "slow"}, "payload.mode: expected one of 'fast', 2, got a text"),
        ({"either": "x"}, "payload.either: expected int or UUID or None, got a text"),
        ({"plain": []}, "payload.plain: expected an object, got an array"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    assert message in refusal(Invoice, {**encode(INVOICE), **change})


def test_the_value_itself_is_never_shown() -> None:
    assert "s3cret" not in refusal(Node, {"value": "s3cret"})


def test_a_whole_number_fits_a_float() -> None:
    got = decode_into(Invoice, {**encode(INVOICE), "ratio": 10**16})
    assert type(got.ratio) is float


def test_a_payload_that_is_no_object() -> None:
    assert refusal(Node, [1]) == "payload: expected an object (Node), got an array"


def test_unknown_fields_stop_an_enqueuer_but_not_a_worker() -> None:
    assert decode_into(Node, {"value": 1, "scheduled_for": "x"}) == Node(1)
    with pytest.raises(PayloadError, match=r"payload\.valeu: Node has no such field; did you mean 'value'\?"):
        check_against(Node, {"value": 1, "valeu": 2})
    with pytest.raises(
        PayloadError, match=r"payload\.children\[0\]\.zzz: Node has no such field; it has value, children"
    ):
        check_against(Node, {"value": 1, "children": [{"value": 1, "zzz": 1}]})


@dataclass
class Square:
    side: int
    area: int = field(init=False)

    def __post_init__(self) -> None:
        self.area = self.side**2


def test_what_a_dataclass_computes_is_computed_again() -> None:
    assert check_against(Square, Square(3)) == {"side": 3, "area": 9}
    assert decode_into(Square, {"side": 3, "area": 5}) == Square(3)
    with pytest.raises(PayloadError, match=r"payload\.size: Square has no such field"):
        check_against(Square, {"side": 3, "size": 1})


def test_a_dataclass_may_refuse() -> None:
    assert refusal(Positive, {"amount": -1}) == "payload: Positive refused it: amount must be positive"


@dataclass
class Positive:
    amount: int

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError("amount must be positive")


@dataclass
class WithSet:
    tags: set[str]


@dataclass
class WithIntKeys:
    names: dict[int, str]


@dataclass
class WithMissing:
    it: Undefined  # type: ignore[name-defined]  # noqa: F821 - that it is not there is the case


@dataclass
class Outer:
    inner: list[WithSet | None]


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (WithSet, r"payload\.tags: a field of type set\[str\] cannot be read from JSON"),
        (WithIntKeys, r"payload\.names: the keys of a JSON object are str, not int"),
        (
            WithMissing,
            r"payload: the annotations of WithMissing cannot be resolved \(name 'Undefined' is not defined\)",
        ),
        (Outer, r"payload\.inner\.tags: "),
    ],
)
def test_a_type_that_json_cannot_give_is_refused_beforehand(annotation: Any, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        check_type(annotation)


def test_a_hostile_depth_is_no_recursion_error() -> None:
    nested: dict[str, Any] = {"value": 1}
    for _ in range(5000):
        nested = {"value": 1, "children": [nested]}
    assert "nested too deeply" in refusal(Node, nested)
