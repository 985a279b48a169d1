"""The page of a trace: every number and text is there, no text becomes markup, and nothing comes from outside."""

import re
from html.parser import HTMLParser

import pytest

from lmcompose.errors import DataError
from lmcompose.reporting.page import SATURATION, STRONGEST, page, write_page
from tests.reporting.traces import token, trace_result, with_tuned

EVIL = '<script>alert(1)</script><img src=x onerror="alert(2)">&amp;"\'{{ 7 * 7 }}{% raw %}</label></div><style>'


class Page(HTMLParser):
    """A page as a browser reads it: the elements, and the text inside of those with a class."""

    VOID = ("meta", "input", "br", "img", "link")

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.texts = [], [], []
        self.feed(html)
        self.close()
        assert self.open == [], "an element is not closed"

    def handle_starttag(self, tag, attributes):
        element = {"tag": tag, **dict(attributes), "text": ""}
        self.elements.append(element)
        if tag not in self.VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag, class_name=""):
        return [e for e in self.elements if e["tag"] == tag and class_name in e.get("class", "")]


def test_tokens_have_their_colour_by_direction_and_size():
    tokens = Page(page(trace_result())).all("label", "token")
    assert [e["text"] for e in tokens] == [" the", " cat", "\\n\n", " sat"]
    classes = [e["class"].split() for e in tokens]
    assert classes == [["token"], ["token", "towards", "changed"], ["token", "away"], ["token", "towards", "changed"]]
    strengths = [float(e["style"].removeprefix("--strength: ")) for e in tokens]
    assert strengths[0] == 0
    assert strengths[1] == strengths[2] == pytest.approx(STRONGEST * 1.386 / SATURATION, abs=1e-3)
    assert strengths[3] == STRONGEST


def test_each_token_has_a_card_of_its_own():
    html = Page(page(with_tuned(trace_result())))
    cards = html.all("div", "card")
    assert len(cards) == 4
    for text in ('" cat"', "token 2 of 4", "Moved towards: +1.39 nats, 4 times likelier than for the base.", "10.0 %"):
        assert text in cards[1]["text"]
    for text in (
        'Likeliest for the base: " dog", 60.0 %',
        'Likeliest for the composition: " cat", 70.0 %',
        "0.250 nats",
    ):
        assert text in cards[1]["text"]
    assert re.findall(r"(base|expert|composition|directly tuned)\s*(\d+\.\d %)\s*(\d)", cards[1]["text"])[:4] == [
        ("base", "10.0 %", "2"),
        ("expert", "50.0 %", "1"),
        ("composition", "40.0 %", "1"),
        ("directly tuned", "30.0 %", "3"),
    ]
    assert "The composition left it where the base had it." in cards[0]["text"]
    assert "Moved away: -1.39 nats, 4 times less likely" in cards[2]["text"]
    assert "898 times likelier" in cards[3]["text"]
    picks = html.all("input", "pick")
    labels = {e["for"] for e in html.all("label")}
    assert {e["id"] for e in picks} == labels
    assert [e["id"] for e in picks if "checked" in e] == ["token-4"]  # the one that was moved farthest


def test_texts_stand_side_by_side():
    sections = Page(page(with_tuned(trace_result()))).all("section")
    assert [e["text"] for e in sections] == [
        "the base alonethe dog",
        "compositionthe cat\n sat",
        "directly tunedthe bird",
    ]
    assert len(Page(page(trace_result())).all("section")) == 2
    assert "What each goes on to write" not in page(trace_result(outputs={}))


def test_the_page_tells_what_it_shows():
    html = page(trace_result())
    text = Page(html).all("body")[0]["text"]
    for wanted in (
        "base + alpha * expert", "alpha = 1.5", "base: models/large; expert: models/small", "Once upon",
        "as the composition wrote it", "4 tokens; at 2 of them", "+1.700 nats", "0.250 nats", "-9.10", "-1.225",
        f"{SATURATION:g} nats away", f"{SATURATION:g} nats towards", "Underlined",
        "lmcompose trace my-proxy 'Once'", '"torch": "2.13"',
    ):  # fmt: skip
        assert wanted in text
    assert "as it was given" in page(trace_result(source="given"))
    assert "directly tuned" not in text


def test_every_text_is_escaped():
    trace = with_tuned(trace_result(prompt=EVIL, base=EVIL, command=EVIL, text=EVIL, tuned=EVIL))
    trace["tuned"] = EVIL
    trace["model"] = {"formula": EVIL, "parameters": {EVIL: EVIL}}
    trace["members"] = {EVIL: EVIL}
    trace["summary"]["log_probability"]["members"] = {EVIL: -1.0}
    trace["tokens"] = [token(EVIL, 0.1, 0.2, 0.7, EVIL, EVIL + "x"), token("", 0.1, 0.2, 0.7, spelling=EVIL)]
    for entry in trace["tokens"]:
        entry["members"] = {EVIL: entry["members"]["base"]}
        entry["tuned"] = entry["composition"]
    trace["outputs"] = {name: {"text": EVIL, "ids": []} for name in ("base", "composition", "tuned")}
    plain, html = Page(page(with_tuned(trace_result()))), Page(page(trace))
    assert {e["tag"] for e in html.elements} == {e["tag"] for e in plain.elements}
    assert not html.all("script")
    assert len(html.all("style")) == 1
    assert not any(name.startswith("on") for e in html.elements for name in e)
    assert [e["text"] for e in html.all("label", "token")] == [EVIL, EVIL]
    assert [e["text"] for e in html.all("div", "output")] == [EVIL] * 3
    assert html.all("title")[0]["text"].startswith("Trace: <script>alert(1)</script>")
    assert page(trace).count("{{ 7 * 7 }}") > 10


def test_nothing_comes_from_outside():
    html = page(with_tuned(trace_result()))
    assert not re.search(r"https?:|//[a-z]|@import|url\(|\bsrc=|\bhref=", html)
    policy = next(e for e in Page(html).elements if e.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    assert "prefers-color-scheme: dark" in html
    assert "width=device-width" in html


@pytest.mark.parametrize(
    ("before", "after", "direction", "said"),
    [(0.5, 0.0, "away", "rules this token out"), (0.0, 0.5, "towards", "allows what the base rules out"),
     (0.0, 0.0, "", "left it where the base had it")],
)  # fmt: skip
def test_a_token_that_is_ruled_out(before, after, direction, said):
    trace = trace_result(tokens=[token(" the", 0.2, 0.2, 0.0), token(" cat", before, after, None)])
    trace["summary"] |= {"shift": None, "kl": None}
    trace["summary"]["log_probability"]["composition"] = None
    html = Page(page(trace))
    found = html.all("label", "token")[1]
    assert found["class"].split() == ["token", *([direction] if direction else [])]
    assert found["style"] == f"--strength: {STRONGEST if direction else 0:.3f}"
    assert said in html.all("div", "card")[1]["text"]
    text = html.all("body")[0]["text"]
    assert "Mean\nshift infinite" in text
    assert "compositionruled out" in text


def test_probabilities_read_well():
    wanted = {
        1.0: "100 %",
        0.9996: "100 %",
        0.5: "50.0 %",
        0.0123: "1.23 %",
        0.00052: "0.052 %",
        1e-9: "< 0.001 %",
        0.0: "0 %",
    }
    for probability, text in wanted.items():
        html = Page(page(trace_result(tokens=[token(" a", probability, 0.5, 0.1)])))
        assert html.all("label", "token")[0]["title"] == f"base {text}, composition 50.0 %"


def test_a_shift_that_no_factor_can_be_written_for():
    card = Page(page(trace_result(tokens=[token(" a", 1e-300, 0.5, 800.0)]))).all("div", "card")[0]["text"]
    assert "more than 1,000 times likelier" in card


def test_the_file_is_written_where_it_is_wanted(tmp_path):
    path = write_page(trace_result(prompt="naïve 日本"), tmp_path / "new" / "trace.html")
    assert path.read_text(encoding="utf-8") == page(trace_result(prompt="naïve 日本"))
    assert "naïve 日本" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("result", [{}, {"what": "sweep"}, [], {"what": "trace", "tokens": []}])
def test_what_is_no_trace_is_refused(result, tmp_path):
    with pytest.raises(DataError, match="This is no trace"):
        write_page(result, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())
