"""`lmcompose generate` prints what `generate` in Python gives."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmcompose import CalmForCausalLM
from tests.cli.conftest import Run, Saved, one_line

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
