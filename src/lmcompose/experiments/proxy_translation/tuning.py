"""LoRA on one model, by peft and the Trainer of transformers: the same recipe for the small and for the large one."""

import shutil
import time
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import get_last_checkpoint

from lmcompose.evaluation.texts import continuation_ids
from lmcompose.experiments.proxy_translation.pairs import Pair, answer, prompt
from lmcompose.experiments.proxy_translation.profiles import Profile
from lmcompose.experiments.stages import Report, StepReport
from lmcompose.training.packing import IGNORED

SAVED_EVERY = 10
"""Steps between checkpoints: a run that was stopped goes on from the last one."""


class Answers(Dataset):
    """Prompt and answer as token ids, of which only the answer has labels."""

    def __init__(self, pairs: list[Pair], language: str, tokenizer: PreTrainedTokenizerBase) -> None:
        self.rows = []
        for english, translation in pairs:
            asked = prompt(english, language)
            before = list(tokenizer(asked)["input_ids"])
            after = continuation_ids(tokenizer, asked, before, answer(translation))
            self.rows.append({"input_ids": before + after, "labels": [IGNORED] * len(before) + after})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        """One row, without padding."""
        return self.rows[index]


def tune(
    model_folder: str | Path,
    pairs: list[Pair],
    language: str,
    profile: Profile,
    folder: Path,
    seed: int,
    report: Report,
) -> dict[str, Any]:
    """Tune a LoRA adapter of the model in `model_folder` and save it in `folder`, which PEFT can read.

    Returns:
        `seconds` of processor time since the last start, `trained` parameters, `tokens` of the answers, and `curve`.
    """
    started = time.process_time()
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    plain = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16)
    torch.manual_seed(seed)  # of the adapter
    model = get_peft_model(
        plain,
        LoraConfig(r=profile.rank, lora_alpha=profile.lora_alpha, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    rows = Answers(pairs, language, tokenizer)
    checkpoints = folder.with_name(folder.name + "-checkpoints")
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(checkpoints),
            num_train_epochs=1,
            per_device_train_batch_size=profile.rows,
            learning_rate=profile.learning_rate,
            warmup_steps=profile.warmup,
            lr_scheduler_type="linear",
            max_grad_norm=1.0,
            logging_steps=5,
            save_steps=SAVED_EVERY,
            save_total_limit=1,
            report_to="none",
            disable_tqdm=True,
            seed=seed,
            log_level="error",
        ),
        train_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=IGNORED),
        callbacks=[StepReport(report)],
    )
    trainer.remove_callback(PrinterCallback)
    last = get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    new = folder.with_name(folder.name + "-new")
    shutil.rmtree(new, ignore_errors=True)
    model.save_pretrained(new)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    shutil.rmtree(checkpoints)
    return {
        "seconds": time.process_time() - started,
        "trained": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "tokens": sum(label != IGNORED for row in rows.rows for label in row["labels"]),
        "curve": [
            {"step": entry["step"], "loss": entry["loss"]} for entry in trainer.state.log_history if "loss" in entry
        ],
    }
