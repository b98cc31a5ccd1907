"""Rules of our own statements about answers: what LoRA moves, and what the paper's mask does."""

from __future__ import annotations

from analysis import chat
from analysis.comparisons import best
from analysis.results import Results
from analysis.rows import columns, only
from analysis.rules.headline import judged
from analysis.rules.lora import BLOCKS
from analysis.rules.registry import Outcome, Verdict, facts, rule

ROUTED = "answers_paper"


@rule("ours.chat.{before}", refuted="an interval of the difference wholly below zero: LoRA's "
      "answers are nearer")  # fmt: skip
def further(results: Results, before: str) -> Outcome:
    """LoRA at its best rate against the paper's mask, by the same questions."""
    cell = best(results, BLOCKS["lora-r4"][0])  # as few steps as the mask
    found = chat.apart(results, cell.name, ROUTED, int(before))
    own, mask = (only(chat.table(results), cell=name, before=int(before)).iloc[0]
                 for name in (cell.name, ROUTED))  # fmt: skip
    why = (
        f"{cell.name} {own['divergence']:.3f} nats per token from the original model's answers, "
        f"the paper's mask with causal balance {mask['divergence']:.3f}: {found.value:+.3f} "
        f"({found.low:+.3f} to {found.high:+.3f})"
    )
    known = facts(own, results, "questions") | columns(found, "ours")
    verdict = judged(-found.high, -found.low, 0.0)
    if verdict == Verdict.REPRODUCED and not mask["divergence"]:
        verdict, why = Verdict.ARITHMETIC, f"{why}; the mask reaches no question"
    return Outcome(verdict, why, **known, same_setting=True)
