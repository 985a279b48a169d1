"""Reads a YAML recipe into a pydantic model, and says on which line it is wrong.

Nothing is loaded and nothing is written here: a recipe with a typo fails before any model is read. This file knows
nothing of what a recipe means; the schema (for instance `training.recipe.TrainingRecipe`) does.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from lmcompose.errors import RecipeError, nearest

Schema = TypeVar("Schema", bound=BaseModel)
Location = tuple[str | int, ...]


class Strict(BaseModel):
    """A part of a recipe: an unknown key is an error, and nothing is changed after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def problem_at(message: str, *location: str | int) -> ValidationError:
    """What a validator of a whole recipe raises about one of its parts, so that the line of that part is named.

    location: the keys (and places in lists) that lead there, such as "plausibility", "member".
    """
    problem = PydanticCustomError("value_error", "{message}", {"message": message})
    return ValidationError.from_exception_data("recipe", [InitErrorDetails(type=problem, loc=location, input=None)])


def read_recipe(source: str | os.PathLike[str], schema: type[Schema]) -> Schema:
    """Read and validate a recipe before anything else happens.

    source: the path of a YAML file, or (a string of more than one line) the recipe's text itself.
    schema: the pydantic model to fill. Keys that it does not have are refused, in nested models too.

    Raises RecipeError with file and line, the nearest valid key, and one problem at a time (the first in the file,
    misspelt keys before the missing ones that they leave behind).
    """
    if isinstance(source, str) and "\n" in source:
        return _parse(source, schema, name="recipe")
    return _parse(_read_file(Path(source)), schema, name=str(source))


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except IsADirectoryError:
        raise RecipeError(f"{path} is a folder. Name the recipe file inside it.") from None
    except UnicodeDecodeError:
        raise RecipeError(f"{path} is not a text file. A recipe is YAML, in UTF-8.") from None
    except OSError as error:
        siblings = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise RecipeError(f"{path}: {reason}.{nearest(path.name, siblings)}") from None


def _parse(text: str, schema: type[Schema], name: str) -> Schema:
    root = _compose(text, name)
    if root is None:
        raise RecipeError(f"{name} is empty. It needs at least: {', '.join(_required(schema)) or 'one key'}.")
    if not isinstance(root, yaml.MappingNode):
        raise RecipeError(f"{name}, line {_line(root)}: a recipe is a list of `key: value` lines.")
    _check_keys(root, name, seen=set())
    try:
        data = yaml.SafeLoader("").construct_document(root)
    except yaml.MarkedYAMLError as error:
        raise RecipeError(_syntax_message(error, name)) from None
    try:
        return schema.model_validate(data, extra="forbid")
    except ValidationError as error:
        raise RecipeError(_first_problem(error, root, schema, name)) from None


def recipe_keys(schema: type[BaseModel]) -> Iterator[tuple[str, str, str]]:
    """Every key that a recipe may have: its (indented) name, its default or "required", and its description."""
    yield from _keys_of(schema, "", {schema})


def _shown(default: Any) -> str:
    """A default on one line, of a text of several lines the first; that of a part is told by the part's own keys."""
    if default in (None, {}, []) or isinstance(default, BaseModel):
        return ""
    first, *more = str(default).splitlines()
    return f"{first} ..." if more else first


def _keys_of(schema: type[BaseModel], indent: str, shown: set[type[BaseModel]]) -> Iterator[tuple[str, str, str]]:
    for key, field in schema.model_fields.items():
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        yield (
            f"{indent}{field.alias or key}:",
            "required" if field.is_required() else _shown(default),
            (field.description or ""),
        )
        for model in _models_in(field.annotation):
            if model not in shown:  # a part that occurs twice is written out where it occurs first
                shown.add(model)
                yield from _keys_of(model, indent + "  ", shown)


# ------------------------------------------------------------------------------------------------------------- YAML


def _compose(text: str, name: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise RecipeError(_syntax_message(error, name)) from None
    except yaml.YAMLError as error:  # a character that YAML does not allow; it carries no line
        raise RecipeError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from None
    return node


def _syntax_message(error: yaml.MarkedYAMLError, name: str) -> str:
    mark = error.problem_mark or error.context_mark
    line = f", line {mark.line + 1}" if mark else ""
    hint = " Indent with spaces, not with tabs." if "'\\t'" in str(error.problem) else ""
    return f"{name}{line}: not valid YAML: {error.problem or error.context}.{hint}"


def _check_keys(node: yaml.Node, name: str, seen: set[int]) -> None:
    """Refuse keys that occur twice (YAML would silently take the last) and keys that are not words."""
    if id(node) in seen:  # an alias can point back at its own parent
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(item, name, seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise RecipeError(f"{name}, line {_line(key)}: a key must be a word, not a list or a mapping.")
            if key.value in lines:
                raise RecipeError(
                    f"{name}, line {_line(key)}: key '{key.value}' is already given on line {lines[key.value]}."
                    " Keep one of the two."
                )
            lines[key.value] = _line(key)
            _check_keys(value, name, seen)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _locate(root: yaml.Node, location: Location) -> yaml.Node:
    """The deepest node on the way to `location`: the key where it is a key, else the value that lacks it.

    pydantic puts the names of union branches into a location; they match no key and are passed over.
    """
    node, found = root, root
    for step in location:
        if isinstance(node, yaml.MappingNode):
            # The last match wins, as in the YAML constructor after a merge key (<<).
            matches = [pair for pair in node.value if pair[0].value == str(step)]
            if matches:
                found, node = matches[-1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            found = node = node.value[step]
    return found


# --------------------------------------------------------------------------------------------------------- problems


def _first_problem(error: ValidationError, root: yaml.Node, schema: type[BaseModel], name: str) -> str:
    problems = error.errors()
    # A value that fits no branch of a union has the problems of each branch: the nearest branch is the one with the
    # fewest. A misspelt key also makes its right spelling missing: say the misspelling. Then the order of the file.
    branches = [_branch(root, problem["loc"]) for problem in problems]
    problems.sort(
        key=lambda p: (
            branches.count(_branch(root, p["loc"])) if _branch(root, p["loc"]) else 0,
            p["type"] != "extra_forbidden",
            _line(_locate(root, p["loc"])),
        )
    )
    problem = problems[0]
    text = _describe(dict(problem), root, schema)
    if problem["type"] == "missing" and len(problem["loc"]) == 1:
        return f"{name}: {text}"  # it is missing everywhere, so no line is the wrong one
    return f"{name}, line {_line(_locate(root, problem['loc']))}: {text}"


def _describe(problem: dict[str, Any], root: yaml.Node, schema: type[BaseModel]) -> str:
    location: Location = _without_branches(root, problem["loc"])
    kind, given = problem["type"], problem.get("input")
    here, parent = _dotted(location), _dotted(location[:-1])
    if kind == "missing":
        return f"missing key '{problem['loc'][-1]}'" + (f" in '{_dotted(location)}'." if location else ".")
    if kind == "extra_forbidden":
        valid = _keys_at(schema, problem["loc"][:-1])
        hint = nearest(str(location[-1]), valid) or f" Valid keys{' there' if parent else ''}: {', '.join(valid)}."
        return f"unknown key '{location[-1]}'" + (f" in '{parent}'." if parent else ".") + hint
    if given is None and kind != "value_error":
        return f"key '{here}' has no value. Give it one, or remove the line."
    if kind in ("literal_error", "enum"):
        expected = problem["ctx"]["expected"]
        return (
            f"'{here}' must be {expected}, not {given!r}.{nearest(str(given), expected.replace(chr(39), ' ').split())}"
        )
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        message = "Input should be indented `key: value` lines"
    if not message.startswith("Input should be"):
        return f"'{here}': {message}" if here else message
    expected = message.removeprefix("Input should be").split(",")[0].strip()
    return f"'{here}' must be {expected}, not {given!r}."


def _branch(root: yaml.Node, location: Location) -> Location:
    """The location up to the first step that names a union branch; empty where there is none."""
    for end in range(1, len(location)):
        if len(_without_branches(root, location[:end])) < end:
            return location[:end]
    return ()


def _without_branches(root: yaml.Node, location: Location) -> Location:
    """The steps of a pydantic location that the file has, without the names of union branches between them."""
    steps: list[str | int] = []
    node = root
    for step in location:
        if isinstance(node, yaml.MappingNode):
            values = [value for key, value in node.value if key.value == str(step)]
            if values:
                node = values[-1]
                steps.append(step)
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            steps.append(step)
    return tuple(steps)


def _dotted(location: Location) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return text.removeprefix(".")


# ----------------------------------------------------------------------------------------------------------- schema


def _required(schema: type[BaseModel]) -> list[str]:
    return [field.alias or key for key, field in schema.model_fields.items() if field.is_required()]


def _keys_at(schema: type[BaseModel], location: Location) -> list[str]:
    """The keys that the models at `location` accept, in the order in which the schema names them."""
    models = [schema]
    for step in location:
        inner = [
            model
            for outer in models
            for key, field in outer.model_fields.items()
            if step in (key, field.alias)
            for model in _models_in(field.annotation)
        ]
        # Steps into a list, into a mapping of models or into a union branch stay among the models already found;
        # a union branch that is named narrows them.
        named = [model for model in models if model.__name__ == step]
        models = inner or named or models
    return list(dict.fromkeys(field.alias or key for model in models for key, field in model.model_fields.items()))


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is Annotated:
        yield from _models_in(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType, list, tuple, dict, set):
        for inner in get_args(annotation):
            yield from _models_in(inner)
