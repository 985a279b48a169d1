"""Every error that a user can meet. Each message says what went wrong and what to do next.

The classes double as the built-in exception a caller would expect (`ValueError`, `OSError`), so code that knows
nothing of lmcompose still catches them. This file imports nothing from the project.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class LmcomposeError(Exception):
    """Base class of all errors that lmcompose raises on purpose."""


class ConfigurationError(LmcomposeError, ValueError):
    """An argument or a setting that cannot work, known before any weight is read."""


class RecipeError(ConfigurationError):
    """A recipe that does not parse or does not fit its schema; the message carries file and line."""


class MemberError(LmcomposeError, ValueError):
    """A model that cannot be a member of a composition."""


class TokenizerMismatchError(MemberError):
    """Members that read different tokens where the composition needs them to read the same."""


class WrongBaseError(MemberError):
    """A saved composition is being put on a model other than the one that it was saved with."""


class SavedFolderError(LmcomposeError, OSError):
    """A saved composition that is missing, cut short, or of a format that this version cannot read."""


class DataError(LmcomposeError, ValueError):
    """Composition data that cannot be used."""


class CacheError(LmcomposeError, RuntimeError):
    """A cache that does not belong to the composition or that was advanced without it."""


class RemoteError(LmcomposeError, ConnectionError):
    """A model behind an API that cannot be reached, that stopped answering, or whose answers make no sense.

    Attributes:
        status: the HTTP status of the last answer; None where there was no answer.
        text: what had been generated for the prompt at hand; empty where nothing had.
        token_ids: the same as token ids.
        partial: the results of all prompts up to then, where a generation was under way.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        text: str = "",
        token_ids: Sequence[int] = (),
        partial: Any = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.text = text
        self.token_ids = list(token_ids)
        self.partial = partial


def nearest(name: str, choices: Iterable[str]) -> str:
    """The hint `" Did you mean 'x'?"` for the choice nearest to `name`, or an empty string when none is near."""
    matches = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return f" Did you mean '{matches[0]}'?" if matches else ""
