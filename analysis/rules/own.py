"""Rules of the paper's own models under full attention, on its own texts: only the larger scales
have them (Tables 1, 2, 4, 5 and 10, domains, from scratch, longer texts)."""

from __future__ import annotations

from analysis import commands, scope
from analysis.comparisons import perplexity
from analysis.paper import Claim
from analysis.results import Results, reading_of
from analysis.rows import Missing, need, only
from analysis.rules.registry import Outcome, Verdict, agree, facts, rule
from experiments.settings import Tolerances


@rule(
    "table1.pretrained.ppl", "table10.pretrained.ppl", "table4.instruct.ppl",
    "table2.{model}.ppl_pretrained", "table5.gpt2-xl-1.5b.ppl_full_attention_ft",
    "domains.wikitext-103.ppl_full_attention_ft", "domains.openwebtext.ppl_full_attention_ft",
    "from_scratch.mistral-7b.ppl_full_attention", "long_context.{row}.ppl_full",
    refuted="a perplexity of the same model, on the same text at the same length, further from the "
    "paper's than the limit same_ppl, after as many steps where it is trained",
)  # fmt: skip
def full_attention(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """The perplexity itself, of the cell that the row's command reads."""
    named = commands.cell(claim)
    cell = results.cells.get(named.name) if named else None
    if cell is None or not scope.same_model(claim, cell.model):
        raise Missing
    rows = only(results.rows_of(cell.name), condition="full")
    context = claim.keys.get("context", claim.setting.get("context"))
    rows = need(rows[[scope.same(row["texts"], scope.text_of(claim))
                      and reading_of(results.run_of(row["evidence"])).get("context") == context
                      for _, row in rows.iterrows()]])  # fmt: skip
    ours, trains = perplexity(rows), cell.regime.get("name", "none") != "none"
    verdict, said = Verdict.NOT_REPRODUCED, ""
    if agree(ours, claim.figure, limits.same_ppl):
        verdict = Verdict.REPRODUCED
    elif (
        trains and not claim.setting.get("cluster") and scope.fewer_steps(claim, results, cell.name)
    ):
        verdict, said = Verdict.INCONCLUSIVE, ", after fewer steps"
    known = {"cell": cell.name, "evidence": rows["evidence"].iloc[0],
             "documents": rows["document"].nunique()}  # fmt: skip
    why = f"{ours:.2f} against the paper's {claim.paper} in its own setting{said}"
    return Outcome(verdict, why, ours=ours, **facts(known, results), same_setting=True)
