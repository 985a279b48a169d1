"""Two systems' answers to the same instructions, judged pairwise by a model behind a chat API."""

from lmcompose.evaluation.judging.chat import ChatJudge
from lmcompose.evaluation.judging.run import judge

__all__ = ["ChatJudge", "judge"]
