"""The page and its Markdown: figures are those of the files, texts stay texts, and nothing comes from outside."""

import bisect
import json
import math
import re
from html import unescape
from pathlib import Path

import pytest

from lmcompose.reporting.report.charts import NO_DIFFERENCE
from lmcompose.reporting.report.collecting import Collection, collect
from lmcompose.reporting.report.document import to_html, to_markdown
from lmcompose.reporting.report.kinds import KINDS
from tests.reporting.report.found import (
    EVERY,
    EVIL,
    Page,
    ablations_result,
    compatibility_result,
    curve_result,
    evaluation_result,
    kv_result,
    training_result,
    write,
    write_all,
)
from tests.reporting.traces import trace_result

RESULTS = Path(__file__).parents[3] / "results"


def drawn(folder: Path) -> tuple[str, str]:
    found, output = collect([folder]), folder / "report.html"
    return to_html(found, "Report", output), to_markdown(found, "Report", output)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return drawn(write_all(tmp_path_factory.mktemp("all")))


@pytest.fixture(scope="module")
def ours() -> tuple[str, str]:
    return drawn(RESULTS)


def numbers(value):
    """All numbers of a JSON value, and of lists of numbers the mean."""
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, dict):
        for each in value.values():
            yield from numbers(each)
    elif isinstance(value, list):
        plain = [each for each in value if isinstance(each, int | float)]
        if plain:
            yield sum(plain) / len(plain)
        for each in value:
            yield from numbers(each)


def near(value: float, known: list[float]) -> bool:
    return any(math.isclose(value, each, rel_tol=1e-9, abs_tol=1e-12) for each in known)


@pytest.mark.parametrize("name", EVERY)
def test_every_figure_that_is_drawn_stands_in_the_file(name, tmp_path):
    path = write(tmp_path, name, EVERY[name]())
    known = [factor * each for each in numbers(json.loads(path.read_text())) for factor in (1, 100)]
    marks = Page(drawn(tmp_path)[0]).marks()
    for mark in marks:
        assert all(near(each, known) for each in mark if each is not None), mark
    assert marks or name in ("trace", "training", "compatibility")


def test_every_figure_of_our_own_results_stands_in_its_file():
    found = collect([RESULTS])
    assert not found.broken
    assert len(found.shown) >= 14
    for shown in found.shown:
        plain = set(numbers(shown.result))
        known = sorted([*plain, *(100 * each for each in plain)])
        for mark in Page(to_html(Collection([shown]), "one", shown.path)).marks():
            for each in mark:
                at = bisect.bisect_left(known, each or 0.0)
                assert each is None or near(each, known[max(0, at - 1) : at + 1]), f"{shown.path.name}: {each}"


@pytest.mark.parametrize("pages", ["both", "ours"])
def test_tables_of_the_page_and_of_the_markdown_are_the_same(pages, request):
    html, markdown = request.getfixturevalue(pages)
    tables = Page(html).tables()
    read = {}
    for title, body in re.findall(r"^\*\*(.+)\*\*\n\n((?:\|.*\n)+)", markdown, re.MULTILINE):
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in body.splitlines()]
        read[title] = [[cell.strip().replace(r"\|", "|") for cell in row] for row in (rows[0], *rows[2:])]
    assert len(read) > 15
    read.pop("At a glance")
    assert set(read) == set(tables)
    for title, rows in tables.items():
        plain = [[cell.strip().replace("\n", "<br>") for cell in row] for row in rows]
        bold = [[unescape(re.sub(r"^\*\*(.*)\*\*$", r"\1", cell)) for cell in row] for row in read[title]]
        assert bold == plain, title


@pytest.mark.parametrize("pages", ["both", "ours"])
def test_nothing_comes_from_outside(pages, request):
    html = Page(request.getfixturevalue(pages)[0])
    policy = next(e for e in html.elements if e.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    for element in html.elements:
        assert element["tag"] not in ("script", "link", "img", "iframe", "object", "image", "use")
        assert "src" not in element
        assert re.match(r"#|\./", element.get("href", "#")), element
        assert not any(name.startswith("on") for name in element)
    (style,) = html.all("style")
    assert not re.search(r"@import|url\(|https?:", style["text"])
    assert "prefers-color-scheme: dark" in style["text"]


@pytest.mark.parametrize("pages", ["both", "ours"])
def test_one_can_find_ones_way_without_seeing(pages, request):
    html = Page(request.getfixturevalue(pages)[0])
    ids = [e["id"] for e in html.elements if "id" in e]
    assert len(ids) == len(set(ids))
    assert {e["href"][1:] for e in html.elements if e.get("href", "").startswith("#")} <= set(ids)
    assert {e["aria-labelledby"] for e in html.elements if "aria-labelledby" in e} <= set(ids)
    assert all(e.get("scope") in ("col", "row") for e in html.all("th"))
    pictures = [e for e in html.all("svg") if e.get("role") == "img"]
    assert pictures
    assert all(len(e["aria-label"]) > 5 for e in pictures)
    assert html.elements[0] | {"text": ""} == {"tag": "html", "lang": "en", "text": ""}
    assert len(html.all("h1")) == 1
    assert [e["tag"] for e in html.elements if e["tag"] in ("main", "nav", "header")] == ["header", "nav", "main"]


def test_a_mark_is_where_its_figure_says(tmp_path):
    write(tmp_path, "evaluation", evaluation_result())
    html = Page(drawn(tmp_path)[0])
    bars = [e for e in html.all("rect", "bar") if "x" in e]
    values = [mark[0] for mark in html.marks()][: len(bars)]
    widths = [float(e["width"].rstrip("%")) for e in bars]
    ntrex = list(zip(values, widths, strict=True))[:6]
    scale = ntrex[0][1] / ntrex[0][0]
    assert [width for _, width in ntrex] == pytest.approx([scale * value for value, _ in ntrex], abs=0.01)
    assert all(float(e["x"].rstrip("%")) == 0 for e in bars)


def test_a_curve_is_cut_off_where_its_axis_ends():
    html = to_html(collect([RESULTS / "proxy_translation"]), "one", RESULTS / "x.html")
    lines = Page(html).all("polyline", "curve")
    heights = [float(pair.split(",")[1]) for e in lines for pair in e["points"].split()]
    assert max(heights) > 150, "far below, and not drawn along the edge"
    assert "svg.clip { overflow: hidden; }" in html


def test_languages_gains_and_losses(tmp_path):
    write(tmp_path, "evaluation", evaluation_result())
    tables = Page(drawn(tmp_path)[0]).tables()
    assert tables["ntrex, by language: chrF1"][:2] == [
        ["language", "anchor", "mine"],
        ["cym", "40.2 [38.0, 42.5]", "41.0 [39.0, 43.0]"],
    ]
    assert tables["Gains and losses beside anchor"][1:] == [
        ["ntrex_som: chrF1", "mine", "10.0 [9.0, 11.0]", "21.1 [20.0, 22.0]", "higher"],
        ["gsm8k: exact_match, % (number)", "mine", "50.0 [45.0, 55.0]", "31.0 [26.0, 36.0]", "lower"],
        ["ntrex_cym: chrF1", "mine", "40.2 [38.0, 42.5]", "41.0 [39.0, 43.0]", NO_DIFFERENCE],
        ["ntrex_orm: chrF1", "mine", "12.0 [11.0, 13.0]", "12.5 [11.5, 13.5]", NO_DIFFERENCE],
        ["wikitext: byte_perplexity", "mine", "2.5000", "2.2500", NO_DIFFERENCE],
    ]
    text = Page(drawn(tmp_path)[0]).all("main")[0]["text"]
    assert f"mine beside anchor: higher on 1, lower on 1, {NO_DIFFERENCE} on 3 of 5 tasks." in text
    assert "Only the first 50 examples of each task." in text


def test_a_paired_comparison_of_the_examples_goes_before_two_intervals(tmp_path):
    result = evaluation_result()
    result["minus_first"] = {
        "ntrex_cym": {"mine": {"mean": 0.8, "verdict": "better"}},
        "ntrex_som": {"mine": {"mean": 11.1, "verdict": NO_DIFFERENCE}},
    }
    write(tmp_path, "evaluation", result)
    page = Page(drawn(tmp_path)[0])
    said = {row[0]: row[-1] for row in page.tables()["Gains and losses beside anchor"][1:]}
    assert said["ntrex_cym: chrF1"] == "higher"
    assert said["ntrex_som: chrF1"] == NO_DIFFERENCE
    assert said["gsm8k: exact_match, % (number)"] == "lower"
    assert "example by example" in page.all("main")[0]["text"]


def test_the_ladder_is_sorted_and_says_what_is_not_shown(tmp_path):
    result = ablations_result()
    write(tmp_path, "ablations", result)
    html = drawn(tmp_path)[0]
    tables = Page(html).tables()
    ladder = tables["The ladder: held-out loss, the best first"]
    means = [float(row[1].split()[0]) for row in ladder[1:]]
    assert means == sorted(means)
    assert len(means) == 4
    minus = {row[0]: row[-1] for row in tables["Composition, m_A as it is: minus the others"][1:]}
    said = {name: each["verdict"] for name, each in result["per_byte"]["minus"].items()}
    assert minus["minus the anchor by itself"] == said["anchor"] == "better"
    assert minus["minus composition, LoRA on the anchor"] == said["lora"] == "worse"
    gained = tables["Gained: on what was held out, minus the anchor by itself"]
    lost = tables["Kept or forgotten: English, minus the anchor by itself"]
    words = {row[0]: row[-1] for row in gained[1:]}
    assert words["composition, m_A with random weights"] == NO_DIFFERENCE
    assert {row[0]: row[-1] for row in lost[1:]}["composition, LoRA on the anchor"] == "worse"
    assert "weight averaging was not run: the shapes differ." in html
    hollow = [e for e in Page(html).all("g", "mark") if "none" in e["class"].split()]
    assert len(hollow) == sum(words[name] == NO_DIFFERENCE for name in words) + sum(
        row[-1] == NO_DIFFERENCE for row in [*lost[1:], *tables["Composition, m_A as it is: minus the others"][1:]]
    )


def test_fractions_of_the_data_are_a_curve(both):
    tables = Page(both[0]).tables()
    curve = tables["By keys held in, %: exact match, %"]
    assert [row[0] for row in curve] == ["keys held in, %", "1", "20", "50"]
    assert tables["connections n, beyond the curve, %"][1][0] == "all"


def test_a_run_and_its_curve_say_that_they_are_one_run(both):
    html = both[0]
    text = " ".join(Page(html).all("main")[0]["text"].split())
    assert (
        "Validation loss 4.5000 to 2.2500 nats per token, 1 min 02 s, 12.3 k parameters (one run, no interval)." in text
    )
    assert "A figure without brackets is of one run, without an interval." in text


def test_each_result_says_how_it_was_made(tmp_path):
    write(tmp_path, "a/evaluation", evaluation_result())
    html, markdown = drawn(tmp_path)
    page = Page(html)
    assert "./a/evaluation.json" in [e.get("href") for e in page.all("a")]
    for text in ("lmcompose evaluate models/large", '"torch": "2.13.0"', '"seed": 7', '"limit": 50'):
        assert text in page.all("main")[0]["text"]
        assert text in markdown
    folded = [e["text"] for e in page.all("details", "record")]
    assert len(folded) == 1
    assert '"torch": "2.13.0"' in folded[0]


def evil_trace():
    tokens = trace_result()["tokens"]
    for token in tokens:
        token |= {"text": EVIL, "members": {EVIL: token["members"]["base"]}}
    return trace_result(prompt=EVIL, base=EVIL, command=EVIL, tokens=tokens, members={EVIL: "x"})


def test_every_text_is_escaped(tmp_path):
    plain, evil = tmp_path / "plain", tmp_path / "evil"
    pairs = {
        "evaluation": (evaluation_result(), evaluation_result("a" + EVIL, "b" + EVIL) | {"command": EVIL}),
        "ablations": (
            ablations_result(),
            ablations_result()
            | {"recipe_name": EVIL, "refused": {EVIL: EVIL}}
            | {"arms": dict.fromkeys(ablations_result()["arms"], EVIL)},
        ),
        "kv": (kv_result(), kv_result() | {"profile": EVIL, "stages": [{"name": EVIL, "seconds": 1.0}]}),
        "curve": (curve_result(), curve_result() | {"unit": EVIL}),
        "trace": (trace_result(), evil_trace()),
        "versions": (compatibility_result(), dict(zip([EVIL, "b"], compatibility_result().values(), strict=True))),
        "run": (training_result(), training_result() | {"recipe": {"output": EVIL}, "versions": {EVIL: EVIL}}),
    }  # fmt: skip
    for name, (good, bad) in pairs.items():
        write(plain, name, good)
        write(evil, name, bad)
    write(plain, "left", {"what": "left"})
    write(evil, "left", {"what": EVIL})
    (plain / "cut.json").write_text("{")
    (evil / "<b>&\"'.json").write_text("{")
    one, other = Page(drawn(plain)[0]), Page(drawn(evil)[0])
    assert {e["tag"] for e in one.elements} == {e["tag"] for e in other.elements}
    assert not other.all("script")
    assert len(other.all("style")) == 1
    assert not any(name.startswith("on") for e in other.elements for name in e)
    assert other.elements[0]["text"].count("<script>alert(1)</script>") > 20
    assert "49" not in other.all("title")[0]["text"]
    title = to_html(collect([plain]), EVIL, plain / "x.html")
    assert Page(title).all("h1")[0]["text"] == EVIL
    markdown = re.sub(r"^(```+)json\n.*?\n\1$", "", drawn(evil)[1], flags=re.MULTILINE | re.DOTALL)
    assert markdown.count("alert(1)") > 20
    assert not re.search(r"(?<!\\)<(script|img|style)", re.sub(r"(`+).*?\1", "", markdown))


def test_a_file_is_no_address_whatever_its_name(tmp_path):
    write(tmp_path, "javascript:alert(1)", training_result())
    write(tmp_path, "a b#c?", training_result())
    links = [e["href"] for e in Page(drawn(tmp_path)[0]).all("a") if not e["href"].startswith("#")]
    assert sorted(links) == ["./a%20b%23c%3F.json", "./javascript%3Aalert%281%29.json"]


def test_results_of_one_title_are_told_apart_by_their_folders(tmp_path):
    for name in ("one", "two"):
        write(tmp_path, f"{name}/loss_curve", curve_result())
    titles = [e["text"] for e in Page(drawn(tmp_path)[0]).all("h3")]
    assert titles == ["Loss curve, one/loss_curve.json", "Loss curve, two/loss_curve.json"]


def test_what_is_left_out_is_listed(tmp_path):
    write(tmp_path, "run", training_result())
    write(tmp_path, "left", {"what": "something else"})
    (tmp_path / "cut.json").write_text("{")
    html, markdown = drawn(tmp_path)
    text = Page(html).all("main")[0]["text"]
    for wanted in (
        "1 file could not be read",
        "cut.json",
        "Of a kind that has no section, 'something else': left.json",
    ):
        assert wanted in text
    for wanted in ("## Files that could not be read", "cut.json", "left.json"):
        assert wanted in markdown


def test_kinds_stand_in_one_order_under_their_headings(both):
    groups = [e["text"] for e in Page(both[0]).all("h2", "group")][1:]
    wanted = list(dict.fromkeys(kind.group for kind in KINDS.values()))
    assert groups == [group for group in wanted if group in groups]
    assert len(groups) >= 6


def test_a_new_kind_is_one_entry(tmp_path, monkeypatch):
    from lmcompose.reporting.report.charts import Section
    from lmcompose.reporting.report.kinds import Kind
    from lmcompose.reporting.tables import Grid

    def build(result):
        return Section(result["name"], [Grid("What was found", ["", "figure"], [["x", f"{result['x']:.1f}"]])])

    monkeypatch.setitem(KINDS, "mine", Kind("Of my own", build))
    write(tmp_path, "mine", {"what": "mine", "name": "My kind", "x": 1.25})
    html, markdown = drawn(tmp_path)
    assert Page(html).tables()["What was found"] == [["", "figure"], ["x", "1.2"]]
    assert "### My kind" in markdown
