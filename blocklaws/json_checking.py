"""JSON against a JSON Schema, for files of strangers.

Must hold: what is wrong first is told as one short sentence with its place; a whole number is written as one (``2.0``
is a number that NumPy refuses later, far from the file). Must not: import jsonschema before something is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["first_problem"]

_LONGEST = 200


def first_problem(data: Any, schema: Mapping[str, Any]) -> str:
    """Return what is wrong with some JSON, with its place; an empty text where it is as the schema says."""
    import jsonschema

    whole = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    strict: Any = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
        jsonschema.Draft202012Validator, type_checker=whole
    )
    try:
        error = next(strict(schema).iter_errors(data), None)
    except RecursionError:
        return "it is nested too deeply"
    if error is None:
        return ""
    while error.context:  # of several forms that are allowed, say what is wrong with the first
        error = error.context[0]
    where = ".".join(f"{part!s:.60}" for part in error.absolute_path)
    message = error.message
    if len(message) > _LONGEST:
        message = f"{message[: _LONGEST - 60]} ... {message[-55:]}"
    return f"{where}: {message}" if where else message
