"""`lmcompose generate` prints what `generate` in Python gives."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmcompose import CalmForCausalLM, LogitForCausalLM, combine, proxy_tune
from tests.cli.conftest import Proxy, Run, Saved, one_line
from tests.tiny import save_tiny

PROMPTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9"]


def expected(model: CalmForCausalLM, prompt: str, **options: Any) -> str:
    assert model.tokenizer is not None
    encoded = model.tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    options = {"max_new_tokens": 8, "do_sample": False, **options}
    output = model.generate(**encoded, **options)
    return str(model.tokenizer.decode(output[0, encoded["input_ids"].shape[1] :], skip_special_tokens=True))


def generate(run: Run, saved: Saved, *arguments: object, stdin: str | None = None) -> str:
    result = run("generate", saved.folder, "--max-new-tokens", 8, *arguments, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_a_prompt_as_argument_and_on_stdin(run: Run, saved: Saved, model: CalmForCausalLM) -> None:
    text = expected(model, PROMPTS[0])
    assert text
    assert generate(run, saved, PROMPTS[0]).strip() == text
    assert generate(run, saved, stdin=PROMPTS[0] + "\n").strip() == text
    assert generate(run, saved, "-", stdin=PROMPTS[0]).strip() == text


def test_json(run: Run, saved: Saved, model: CalmForCausalLM) -> None:
    answer = json.loads(generate(run, saved, PROMPTS[0], "--json"))
    assert answer["prompt"] == PROMPTS[0]
    assert answer["text"] == expected(model, PROMPTS[0])
    assert 1 <= answer["tokens"] <= 8
    assert answer["finish"] == ("length" if answer["tokens"] == 8 and answer["finish"] != "stop" else "stop")
    assert answer["seconds"] > 0


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_a_batch_equals_its_rows(
    run: Run, saved: Saved, model: CalmForCausalLM, tmp_path: Path, batch_size: int
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\n\n".join(PROMPTS) + "\n")
    lines = generate(run, saved, "--batch", file, "--json", "--batch-size", batch_size).splitlines()
    answers = [json.loads(line) for line in lines]
    assert [answer["prompt"] for answer in answers] == PROMPTS
    assert [answer["text"] for answer in answers] == [expected(model, prompt) for prompt in PROMPTS]
    assert generate(run, saved, "--batch", file).splitlines() == [answer["text"] for answer in answers]
    assert generate(run, saved, "--batch", "-", stdin=file.read_text()).splitlines() == [a["text"] for a in answers]


def test_beams(run: Run, saved: Saved, model: CalmForCausalLM) -> None:
    assert generate(run, saved, PROMPTS[2], "--num-beams", 3).strip() == expected(model, PROMPTS[2], num_beams=3)


def test_sampling_is_repeatable_and_differs_by_seed(run: Run, saved: Saved) -> None:
    texts = [generate(run, saved, PROMPTS[0], "--temperature", 1.5, "--seed", seed) for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


def test_chat_uses_the_anchors_template(run: Run, saved: Saved, model: CalmForCausalLM, tmp_path: Path) -> None:
    # tiny_tokenizer's template; it writes the end of a turn itself
    text = expected(model, "user : w1 w2 </s> assistant : ")
    assert generate(run, saved, "w1 w2", "--chat").strip() == text
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "w1 w2"}]}) + "\n")
    answer = json.loads(generate(run, saved, "--batch", file, "--json"))
    assert answer["text"] == text
    assert answer["prompt"] == [{"role": "user", "content": "w1 w2"}]
    # Chats and plain prompts can stand in one file, and run in one batch.
    file.write_text(file.read_text() + json.dumps({"prompt": PROMPTS[0]}) + "\n")
    answers = [json.loads(line) for line in generate(run, saved, "--batch", file, "--json").splitlines()]
    assert [answer["text"] for answer in answers] == [text, expected(model, PROMPTS[0])]


BRACE = '{"messages": w1 }'


@pytest.mark.parametrize("chat", [False, True])
def test_only_the_ending_makes_a_batch_json(
    run: Run, saved: Saved, model: CalmForCausalLM, tmp_path: Path, chat: bool
) -> None:
    """A prompt that looks like JSON is a prompt, in a text file, on stdin, and inside a JSON line."""
    text = expected(model, f"user : {BRACE} </s> assistant : " if chat else BRACE)
    plain, lines = tmp_path / "prompts.txt", tmp_path / "prompts.JSONL"
    plain.write_text(BRACE + "\n")
    lines.write_text(json.dumps({"prompt": BRACE}) + "\n")
    options = ["--json", *(["--chat"] if chat else [])]
    for file, stdin in ((plain, None), (lines, None), ("-", plain.read_text())):
        answer = json.loads(generate(run, saved, "--batch", file, *options, stdin=stdin))
        assert (answer["prompt"], answer["text"]) == (BRACE, text)
    messages = [{"role": "user", "content": "w1 w2"}]
    lines.write_text("  " + json.dumps({"messages": messages}) + "\n")
    answer = json.loads(generate(run, saved, "--batch", lines, *options))
    assert answer["prompt"] == messages


def test_a_json_line_ends_at_the_end_of_the_line_only(run: Run, saved: Saved, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    prompt = "w1\u2028w2\x85w3"
    file.write_text(json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert json.loads(generate(run, saved, "--batch", file, "--json"))["prompt"] == prompt


def test_without_an_augmenting_model(run: Run, saved: Saved, model: CalmForCausalLM) -> None:
    def alone(prompt: str) -> str:
        with model.disable():
            return expected(model, prompt)

    differing = [prompt for prompt in (f"w{k} w{k + 1}" for k in range(20)) if alone(prompt) != expected(model, prompt)]
    prompt = differing[0]
    assert generate(run, saved, prompt, "--without", "domain").strip() == alone(prompt)
    assert json.loads(generate(run, saved, prompt, "--without", "domain", "--json"))["text"] == alone(prompt)
    result = run("generate", saved.folder, "w1", "--without", "domain", "--without", "domian")
    assert result.exit_code == 2
    assert "no augmenting model 'domian'" in one_line(result)
    assert "Did you mean 'domain'?" in result.stderr


def test_a_logit_composition_has_no_augmenting_models(run: Run, proxy: Proxy) -> None:
    result = run("generate", proxy.folder, "w1", "--without", "expert")
    assert result.exit_code == 2
    assert "Leave out --without" in one_line(result)


def test_members_that_have_moved(run: Run, saved: Saved, model: CalmForCausalLM, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.symlink_to(saved.augmenting)
    text = generate(run, saved, PROMPTS[0], "--member", f"domain={moved}", "--member", f"anchor={saved.anchor}")
    assert text.strip() == expected(model, PROMPTS[0])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{folder}", ""], 2, "The prompt is empty."),
        (["{folder}", "x", "--batch", "y"], 2, "Give either a prompt or --batch, not both."),
        (["{folder}", "--batch", "no-such-file"], 2, "--batch no-such-file: No such file or directory."),
        (["{folder}", "x", "--member", "anchor"], 2, "--member 'anchor' is not of the form ROLE=MODEL"),
        (["{folder}", "x", "--member", "anchr={anchor}"], 2, "'{folder}' has no member ['anchr']"),
        (["{folder}", "x", "--member", "domain={anchor}"], 2, "This composition was trained with '{augmenting}'"),
        (["{anchor}", "x"], 1, "'{anchor}' holds a"),
        (["{folder}/nothing", "x"], 1, "No saved composition at '{folder}/nothing'"),
    ],
)
def test_bad_input(run: Run, saved: Saved, arguments: list[str], code: int, message: str) -> None:
    result = run("generate", *(argument.format(**vars(saved)) for argument in arguments))
    assert result.exit_code == code
    assert one_line(result).startswith(message.format(**vars(saved)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{'prompt'", ", line 2 is not JSON."),
        ('{"text": "w1"}', ", line 2 has neither 'prompt' (a text) nor 'messages' (a list)."),
    ],
)
def test_a_bad_batch_file(run: Run, saved: Saved, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "batch.jsonl"
    file.write_text('{"prompt": "w1"}\n' + text + "\n")
    result = run("generate", saved.folder, "--batch", file)
    assert result.exit_code == 2
    assert message in one_line(result)


def test_an_empty_batch_file(run: Run, saved: Saved, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    result = run("generate", saved.folder, "--batch", tmp_path / "empty.txt")
    assert result.exit_code == 2
    assert one_line(result) == f"There is no prompt in {tmp_path / 'empty.txt'}. Write one a line."


# ------------------------------------------------------------------------------------------------ logit compositions


def prepared(model: LogitForCausalLM, prompt: Any, **options: Any) -> str:
    """What Python gives for one prompt; `context` and `system` are those of `prepare`, the rest is of `generate`."""
    reading = {name: options.pop(name) for name in ("context", "system") if name in options}
    inputs = model.prepare(prompt, **reading)
    output = model.generate(**inputs, **{"max_new_tokens": 8, "do_sample": False, **options})
    assert model.tokenizer is not None
    return str(model.tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


def combined(run: Run, folder: Path, *arguments: object) -> str:
    result = run("generate", folder, "--max-new-tokens", 8, *arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()


def test_alpha(run: Run, proxy: Proxy, proxy_model: LogitForCausalLM) -> None:
    texts = {
        alpha: combined(run, proxy.folder, PROMPTS[0], *alpha) for alpha in ((), ("--alpha", 0), ("--alpha", "2,1"))
    }
    assert texts[()] == prepared(proxy_model, PROMPTS[0])
    with proxy_model.disable():
        assert texts["--alpha", 0] == prepared(proxy_model, PROMPTS[0])
    assert texts["--alpha", "2,1"] == prepared(proxy_model, PROMPTS[0], alpha=[2.0, 1.0])
    assert len(set(texts.values())) == 3
    assert combined(run, proxy.folder, PROMPTS[0], "--parameter", "alpha=0") == texts["--alpha", 0]


def test_a_batch_of_a_logit_composition(run: Run, proxy: Proxy, proxy_model: LogitForCausalLM, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(PROMPTS) + "\n")
    answers = [json.loads(line) for line in combined(run, proxy.folder, "--batch", file, "--json").splitlines()]
    assert [answer["text"] for answer in answers] == [prepared(proxy_model, prompt) for prompt in PROMPTS]
    assert "acceptance" not in answers[0]
    beams = combined(run, proxy.folder, PROMPTS[2], "--num-beams", 3)
    assert beams == prepared(proxy_model, PROMPTS[2], num_beams=3)


def test_speculation_gives_the_same_text_and_says_what_it_did(
    run: Run, proxy: Proxy, proxy_model: LogitForCausalLM
) -> None:
    answer = json.loads(combined(run, proxy.folder, PROMPTS[0], "--speculative", "--json"))
    assert answer["text"] == prepared(proxy_model, PROMPTS[0])
    assert 0 <= answer["acceptance"] <= 1
    assert 0 < answer["passes_per_token"] <= 1
    assert combined(run, proxy.folder, PROMPTS[0], "--speculative") == answer["text"]


@pytest.fixture(scope="module")
def reader(proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LogitForCausalLM]:
    """Context-aware decoding with one model: what its roles read differs."""
    model = combine("context_aware", {"with_context": proxy.base, "without_context": proxy.base}, alpha=3.0)
    folder = tmp_path_factory.mktemp("reader") / "saved"
    model.save_pretrained(folder)
    return folder, model


def test_a_context_for_one_member(run: Run, reader: tuple[Path, LogitForCausalLM], tmp_path: Path) -> None:
    folder, model = reader
    context = {"with_context": "w9 w8 w7 "}
    text = prepared(model, PROMPTS[0], context=context)
    assert text != prepared(model, PROMPTS[0]), "the context makes no difference"
    assert combined(run, folder, PROMPTS[0], "--context", "with_context=w9 w8 w7 ") == text
    # In a file, what stands beside a prompt goes before the option; prompts with and without run in one batch.
    file = tmp_path / "questions.jsonl"
    records = [{"prompt": PROMPTS[0], "context": context}, {"prompt": PROMPTS[2]}]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    options = ["--batch", file, "--json", "--context", "with_context=w3 "]
    answers = [json.loads(line)["text"] for line in combined(run, folder, *options).splitlines()]
    assert answers == [text, prepared(model, PROMPTS[2], context={"with_context": "w3 "})]


def test_a_system_message_for_one_member(run: Run, proxy: Proxy, proxy_model: LogitForCausalLM, tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "w1 w2"}]
    plain, told = (prepared(proxy_model, chat, **option) for option in ({}, {"system": {"expert": "w50 w51"}}))
    assert plain != told, "the system message makes no difference"
    assert combined(run, proxy.folder, "w1 w2", "--chat") == plain
    assert combined(run, proxy.folder, "w1 w2", "--chat", "--system", "expert=w50 w51") == told
    file = tmp_path / "chats.jsonl"
    records = [{"messages": chat, "system": {"expert": "w50 w51"}}, {"messages": chat}]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    answers = [json.loads(line)["text"] for line in combined(run, proxy.folder, "--batch", file, "--json").splitlines()]
    assert answers == [told, plain]


def test_the_chat_template_of_another_member(run: Run, proxy: Proxy, tmp_path: Path) -> None:
    """A base that was never tuned to chat has no template."""
    base = save_tiny(tmp_path / "base", "llama")
    (base / "chat_template.jinja").unlink()
    model = proxy_tune(base, proxy.expert, proxy.antiexpert)
    model.save_pretrained(tmp_path / "saved")
    result = run("generate", tmp_path / "saved", "w1 w2", "--chat")
    assert result.exit_code == 2
    assert one_line(result).startswith("The tokenizer of 'base' has no chat template.")
    chat = [{"role": "user", "content": "w1 w2"}]
    text = combined(run, tmp_path / "saved", "w1 w2", "--chat", "--template", "base=expert")
    inputs = model.prepare(chat, templates={"base": "expert"})
    output = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert model.tokenizer is not None
    assert text == model.tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def test_a_member_of_a_logit_composition_that_has_moved(
    run: Run, proxy: Proxy, proxy_model: LogitForCausalLM, tmp_path: Path
) -> None:
    (tmp_path / "moved").symlink_to(proxy.expert)
    text = combined(run, proxy.folder, PROMPTS[0], "--member", f"expert={tmp_path / 'moved'}")
    assert text == prepared(proxy_model, PROMPTS[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--alpha", "much"], "--alpha 'much' is no number."),
        (["--alpha", "1,,2"], "--alpha '1,,2' is no number."),
        (
            ["--parameter", "alhpa=1"],
            "The formula has no parameter 'alhpa'; its parameters are ['alpha']. Did you",
        ),
        (["--parameter", "1"], "--parameter '1' is not of the form NAME=NUMBER"),
        (["--alpha", "1", "--parameter", "alpha=2"], "Give alpha either as --alpha or as --parameter"),
        (["--system", "expert=w1"], "A system message needs a chat: add --chat"),
        (["--context", "exprt=w1"], "There is no member 'exprt'"),
        (["--context", "w1"], "--context 'w1' is not of the form ROLE=TEXT"),
        (["--speculative", "--num-beams", "2"], "Speculation decodes greedily or by sampling"),
    ],
)
def test_bad_input_for_a_logit_composition(run: Run, proxy: Proxy, arguments: list[str], message: str) -> None:
    result = run("generate", proxy.folder, PROMPTS[0], *arguments)
    assert result.exit_code == 2
    assert one_line(result).startswith(message)


@pytest.mark.parametrize(
    "option", [["--alpha", "1"], ["--context", "anchor=w1"], ["--template", "anchor=domain"], ["--speculative"]]
)
def test_what_a_calm_composition_has_no_use_of(run: Run, saved: Saved, option: list[str]) -> None:
    result = run("generate", saved.folder, PROMPTS[0], *option)
    assert result.exit_code == 2
    assert one_line(result).startswith("This is a calm composition: it has no formula")


@pytest.mark.parametrize("name", ["context", "system"])
def test_texts_by_role_in_a_batch_file(run: Run, proxy: Proxy, tmp_path: Path, name: str) -> None:
    file = tmp_path / "batch.jsonl"
    file.write_text(json.dumps({"prompt": "w1", name: "w2"}) + "\n")
    result = run("generate", proxy.folder, "--batch", file)
    assert result.exit_code == 2
    assert f"line 1: '{name}' must be an object of texts by role" in one_line(result)
