"""Remedies in messages: settings and calls that stay apart from the text around them.

The text of an error is Python, for those who call tarpeg: ``give allow_overlap=True``. A front end with
another syntax, such as the tools on the command line, shows the parts in its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Call(NamedTuple):
    """A proposed call: ``...`` is a value for the user to choose. ``str()`` of it is Python."""

    function: str
    arguments: Mapping[str, Any] = {}

    def __str__(self) -> str:
        given = (f"{name}={_shown(value)}" for name, value in self.arguments.items())
        return f"{self.function}({', '.join(given)})"


class Setting(NamedTuple):
    """An argument and its proposed value; ``...`` without one. ``str()`` of it is Python.

    Attributes:
        owner: The public class or function with this argument; "network" for the model of the user,
            "detector" for one whose label 0 is the background, "prepare" for each class whose objects are
            ``prepare=`` of the data module.
        name: Name of the argument.
        value: Proposed value.
    """

    owner: str
    name: str
    value: Any = ...

    def __str__(self) -> str:
        return self.name if self.value is ... else f"{self.name}={_shown(self.value)}"


Part = str | Call | Setting
"""A piece of a message: text, or a remedy."""


class Message(str):
    """A text with its parts. An error keeps it as its argument: ``error.args[0].parts``."""

    parts: tuple[Part, ...]

    def __new__(cls, *parts: Part) -> Message:
        """Join the parts."""
        text = super().__new__(cls, "".join(map(str, parts)))
        text.parts = parts
        return text

    @property
    def remedies(self) -> tuple[Call | Setting, ...]:
        """The parts that are not text."""
        return tuple(part for part in self.parts if not isinstance(part, str))


def parts_of(message: BaseException | str) -> tuple[Part, ...]:
    """Return the parts of a message or of an error's message: one text if it has no remedies."""
    text = message
    if isinstance(message, BaseException):
        text = message.args[0] if len(message.args) == 1 else str(message)
    return text.parts if isinstance(text, Message) else (str(message),)


def _shown(value: object) -> str:
    if value is ...:
        return "..."
    return str(value) if isinstance(value, Call) else repr(value)
