"""Functions, methods and objects to guard with `@gate.once`; they record their calls."""

import asyncio
from collections.abc import Iterator
from typing import Any

from oncegate import Gate

calls: list[Any] = []


def charge(order_id: int, amount: float = 1.0) -> dict[str, Any]:
    calls.append((order_id, amount))
    return {"charged": order_id}


async def charge_later(order_id: int) -> dict[str, Any]:
    calls.append(order_id)
    await asyncio.sleep(0.01)
    return {"charged": order_id}


def explode(order_id: int) -> None:
    calls.append(order_id)
    raise ValueError(f"boom {order_id}")


def generate(order_id: int) -> Iterator[int]:
    yield order_id


async def generate_later(order_id: int) -> Any:
    yield order_id


class Generator:
    def __call__(self, order_id: int) -> Iterator[int]:
        yield order_id


class Charge:
    """A callable object."""

    def __call__(self, order_id: int) -> dict[str, Any]:
        return charge(order_id)


class ChargeLater:
    async def __call__(self, order_id: int) -> dict[str, Any]:
        return await charge_later(order_id)


class Shop:
    gate = Gate("memory://")

    def __init__(self, name: str) -> None:
        self.name = name

    @gate.once(name="shop.sell")
    def sell(self, item: str) -> str:
        calls.append(item)
        return f"{self.name} sold {item}"

    @classmethod
    @gate.once(name="shop.open")
    def open(cls, day: str) -> str:
        calls.append(day)
        return f"{cls.__name__} open on {day}"

    @staticmethod
    @gate.once(name="shop.count")
    def count(things: int) -> int:
        calls.append(things)
        return things

    @gate.once(name="shop.weigh")
    @staticmethod
    def weigh(things: int) -> int:
        calls.append(things)
        return things

    @gate.once(name="shop.close")
    @classmethod
    async def close(cls, day: str) -> str:
        calls.append(day)
        return f"{cls.__name__} closed on {day}"

    @gate.once(name="shop.deliver")
    async def deliver(self, item: str) -> str:
        calls.append(item)
        return f"{self.name} delivered {item}"


def enrol(cls: str, student: str) -> str:
    return f"{student} in {cls}"


class School:
    @staticmethod
    @Shop.gate.once(name="school.enrol")
    def enrol(cls: str, student: str) -> str:  # noqa: PLW0211  # as people do write it
        return f"{student} in {cls}"


class Branch(Shop):
    """A class that inherits guarded methods."""
