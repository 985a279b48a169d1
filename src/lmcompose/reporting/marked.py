"""Pages of the documentation with a part that a command writes."""

from lmcompose.errors import DataError

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
"""What stands between the two in a page is written by `with_marked`."""


def around_marked(page: str) -> tuple[str, str]:
    """What stands before and after the marked part of `page`.

    Raises:
        DataError: the page has no part that is marked with `BEGIN` and `END`.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise DataError(f"The page has no part between '{BEGIN}' and '{END}' to write the tables into. Put both there.")
    return before, after


def with_marked(page: str, body: str) -> str:
    """`page` with `body` in place of its marked part; raises DataError where there is none."""
    before, after = around_marked(page)
    return f"{before}{BEGIN}\n\n{body}\n{END}{after}"
