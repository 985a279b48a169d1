"""The part of a documentation page that a command writes from results: all else on the page is written by hand."""

from lmcompose.errors import DataError

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def with_measured(page: str, measured: str) -> str:
    """`page` with what stands between its two marks replaced.

    Raises:
        DataError: the page has no such part.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise DataError(f"The page has no part between '{BEGIN}' and '{END}' to write the tables into. Put both there.")
    return f"{before}{BEGIN}\n\n{measured.rstrip()}\n\n{END}{after}"
