"""What a tool's schemas look like on the wire, and how arguments are held to them.

Every client sends the list of tools to its model or keeps it in mind for the whole session, so it is kept short: input
schemas without what says nothing, answers as an outline. What is accepted and what is returned is checked against
the full models all the same.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any

from mcp.server.mcpserver.tools import Tool
from pydantic import ValidationError

from kopt_mcp.server.answers import failure


class StrictTool(Tool):
    """A tool that refuses arguments that it does not have, in words rather than in a validator's report."""

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> Any:
        """Check the arguments, then run."""
        try:
            self.fn_metadata.validate_arguments(arguments)
        except ValidationError as error:
            return failure("InputRefused", _explain(self.name, error, self.parameters))
        return await super().run(arguments, context, convert_result)

    def tighten(self) -> None:
        """Refuse unknown arguments, and publish short schemas."""
        arguments = self.fn_metadata.arg_model
        arguments.model_config["extra"] = "forbid"
        arguments.model_rebuild(force=True)
        schema = arguments.model_json_schema(by_alias=True)
        self.parameters = lean(schema, schema.pop("$defs", {}))
        if self.fn_metadata.output_schema is not None:
            self.fn_metadata.output_schema = outline(self.fn_metadata.output_schema)


def lean(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """An input schema in short: no titles, no pattern (a handle is copied), "optional" instead of "may be null"."""
    if "$ref" in schema:  # stands where it is used, and that says what it is for
        named = definitions[schema["$ref"].rpartition("/")[2]]
        schema = {**{key: value for key, value in named.items() if key != "description"}, **schema}
    something, *null = schema.get("anyOf", [None])
    if null == [{"type": "null"}]:
        return lean({**something, **{key: value for key, value in schema.items() if key != "anyOf"}}, definitions)
    dull = [(key, schema.get(key)) for key in ("title", "pattern", "$ref")] + [("default", None)]
    kept = {key: value for key, value in schema.items() if (key, value) not in dull}
    if "properties" in kept:
        kept["properties"] = {name: lean(inner, definitions) for name, inner in kept["properties"].items()}
    if "items" in kept:
        kept["items"] = lean(kept["items"], definitions)
    return kept


def outline(schema: dict[str, Any]) -> dict[str, Any]:
    """The top level of an answer's schema: which fields there are and of which type; they are always all there.

    What a field means is in the docstrings of `results`; the models see answers, not these schemas.
    """
    return {
        "type": "object",
        "properties": {name: _kind(inner) for name, inner in schema["properties"].items()},
    }


def _kind(schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:  # may be null, which takes a line to say and which every answer shows by itself
        return {}
    return {"type": "object" if "$ref" in schema else schema["type"]}


def _explain(tool: str, error: ValidationError, schema: dict[str, Any]) -> str:
    """A sentence a problem: what, why, and what there is instead; what is missing at one place is named together."""
    sentences: list[str] = []
    absent: dict[tuple[int | str, ...], list[str]] = {}
    for problem in error.errors(include_url=False, include_context=False):
        *place, name = problem["loc"]
        if problem["type"] == "missing":
            absent.setdefault(tuple(place), []).append(repr(name))
        elif problem["type"] == "extra_forbidden":
            known = _fields(schema, place)
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}."
            sentences.append(f"{_at(tool, place)} has no argument {str(name)!r}; {hint}")
        else:
            given = json.dumps(problem["input"], default=str)[:120]
            message = problem["msg"][0].lower() + problem["msg"][1:]
            sentences.append(f"{tool}: {_path(problem['loc'])} is {given}; {message}; correct it.")
    for where, names in absent.items():
        sentences.append(
            f"{_at(tool, where)} needs {' and '.join(names)}; not given; call it again with all of them; it takes "
            f"{', '.join(_fields(schema, where))}."
        )
    return " ".join(sentences)


def _at(tool: str, place: Sequence[int | str]) -> str:
    return f"{tool}: {_path(place)}" if place else tool


def _path(place: Sequence[int | str]) -> str:
    """Where in the arguments, as one would write it: edits[0].search."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")


def _fields(schema: dict[str, Any], place: Sequence[int | str]) -> list[str]:
    """The arguments there are at a place of the input schema."""
    for part in place:
        schema = schema["items"] if isinstance(part, int) else schema["properties"][part]
    return list(schema["properties"])
