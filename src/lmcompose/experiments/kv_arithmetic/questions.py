"""The questions of the three tasks as files that `lmcompose evaluate` reads: the very ones that the experiment asks.

    python -m lmcompose.experiments.kv_arithmetic.questions --output data/kv_arithmetic

A line is a prompt and its answer, as the tokenizer of the members spells them: one word, one token.
"""

import argparse
from pathlib import Path

from lmcompose.experiments.kv_arithmetic.evaluate import test_prompts
from lmcompose.experiments.kv_arithmetic.profiles import PROFILES, profile_named
from lmcompose.experiments.kv_arithmetic.task import Kind, Task
from lmcompose.folders import write_json_lines


def write_questions(task: Task, folder: Path, count: int, held_in: bool = False) -> list[Path]:
    """Write kv_subs.jsonl, num_math.jsonl and kv_math.jsonl, each with `count` of the longest expressions.

    Args:
        held_in: over the keys that composition data may show, in place of the others.

    Returns:
        The three files.
    """
    tokenizer = task.tokenizer()
    pool = task.split[0] if held_in else task.split[1]
    files = []
    for kind in Kind:
        prompts, answers = test_prompts(task, kind, count, pool)
        rows = [
            {"prompt": tokenizer.decode(prompt), "answer": tokenizer.decode(answer, skip_special_tokens=True)}
            for prompt, answer in zip(prompts.tolist(), answers.tolist(), strict=True)
        ]
        files.append(write_json_lines(folder / f"{kind}.jsonl", rows))
    return files


def main() -> None:
    """Run from the command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--profile", default="demo", help=f"the size of the experiment: {', '.join(PROFILES)}")
    options.add_argument("--seed", type=int, default=0, help="of the table of keys")
    options.add_argument("--count", type=int, help="questions of each kind (default: as many as the profile asks)")
    options.add_argument("--held-in", action="store_true", help="over the keys that composition data may show")
    options.add_argument("--output", type=Path, default=Path("data/kv_arithmetic"))
    given = options.parse_args()
    profile = profile_named(given.profile)
    task = Task(profile.keys, profile.operands, given.seed)
    for file in write_questions(task, given.output, given.count or profile.tested, given.held_in):
        print(file)


if __name__ == "__main__":
    main()
