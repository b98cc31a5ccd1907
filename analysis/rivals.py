"""Rivals beside ours on the same documents, at equal shares of the distant pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd

from analysis import choosing
from analysis.cells import ROLES, Cell
from analysis.comparisons import COLUMNS, beside, compared, in_common, quality
from analysis.results import Results
from analysis.rows import only, row_of, tabled

READING, TEXTS = "rivals", "unseen"
OURS = "recipe"
BESIDE = ("allocated", "longer_allocated", "heavy", "longer", "longer_heavy", "masked",
          "sparq_groups")  # fmt: skip
MASKED = "masked_lora"  # the recipe's routers, after LoRA under their mask
BUDGET = "0.125"  # the recipe's own
EQUAL = 0.01  # of the distant pairs: by what masks at equal density may differ
CONTROLS = ("heavy_window", "trained_window")  # of ours, beside rivals
NOTHING = "nothing"


class About(NamedTuple):
    """What a rival is.

    Attributes:
        source: its paper or code.
        scores: what its choice computes, beside full attention's product of a query with each key.
        learns: what is trained.
        left_out: of its paper; empty: nothing that we know of.
        generates: whether it can choose token by token.
        every: whether it scores every pair at full cost: an oracle.
    """

    source: str
    scores: str
    learns: str = NOTHING
    left_out: str = ""
    generates: bool = True
    every: bool = False


OWN = "this repository"
ABOUT = {
    "longformer": About("arXiv:2004.05150", NOTHING,
                        left_out="training under it; global and dilated attention"),
    "streaming": About("arXiv:2309.17453", NOTHING,
                       left_out="positions counted within the cache"),
    "routing_transformer": About(
        "arXiv:2003.05997", "each token with its layer's centroids", "centroids, by k-means",
        "training under it; equally full clusters; queries that are keys"),
    "performer": About("arXiv:2009.14794", "every pair, by features: no mask",
                       left_out="training under it; prefix sums, which give the same"),
    "sparq": About("arXiv:2312.04985", "every pair, 16 of 64 dimensions",
                   left_out="a second copy of the keys, for speed"),
    "magicpig": About("arXiv:2410.16179", "hash codes of every pair",
                      left_out="hash tables on the CPU; keys centred by their text; 10 bits"),
    "heavy_window": About(OWN, "a linear map of each token"),
    "trained_window": About(OWN, NOTHING, "LoRA of the routers' size"),
    "quest": About("arXiv:2406.10774", "two products per page of 16 keys",
                   left_out="full attention in the first two layers"),
    "moba": About("arXiv:2502.13189", "one product per block of 64 keys",
                  left_out="training under it; the query's own block"),
    "xattention": About("arXiv:2503.16428", "one pair in 8",
                        left_out="a share of the weight in place of a budget", generates=False),
    "trained_seer": About("arXiv:2410.13276", "one product of 96 per block of 64 keys",
                          "a gate a layer, distilled",
                          "pooled queries; keys before their rotary embedding"),
    "trained_indexer": About("DeepSeek-V3.2 report", "4 products of 44 every pair, for all heads",
                             "an indexer a layer, distilled",
                             "training under it; hidden states as its input"),
    "csa": About("github.com/jnormore/csa", "every pair", "shares of heads", every=True),
    "oracle_heads": About("full attention's own weights", "every pair", every=True),
}  # fmt: skip
MINE = About(OWN, "each token with its layer's centroids", "routers")
SEARCHED = About(f"{OWN}, after arXiv:2312.04985",
                 "36% of the distant pairs, 16 of 64 dimensions; and centroids", "routers",
                 "SparQ's mean value for keys left out", generates=False)  # fmt: skip
OTHERS = {"sparq_groups": SEARCHED, "masked": MINE._replace(learns="routers, then LoRA")}
SEARCHES = "allocated_six"  # all keys that `searched` chooses among


def about(role: str) -> About:
    """What a rival is, or one of ours."""
    return OTHERS.get(role) or ABOUT.get(role, MINE)


def rows(results: Results) -> pd.DataFrame:
    """Rivals and ours on the common reading against the adapted model; of a model trained
    further under its mask, against as much training under full attention, named first."""
    own = only(quality(results), reading=READING, texts=TEXTS, base_role="adapted",
               condition="hard")  # fmt: skip
    ours = own["experiment"].eq(OURS) | own["role"].isin(BESIDE)
    return own[own["role"].isin(list(ABOUT)) | ours].drop_duplicates(["cell", "budget"])


def variants(frame: pd.DataFrame) -> pd.DataFrame:
    """Of a method's variants the best at each budget; the best method first."""
    return frame.sort_values("change").drop_duplicates(["role", "budget"])


def opponent(results: Results, cell: Cell, ours: str = OURS) -> Cell | None:
    """What of ours a method is compared with: these routers, or, where weights learnt under the
    method's mask, the recipe whose weights learnt as much under its own."""
    return results.cells.get(MASKED if cell.regime.get("name") == "lora" else ours)


@tabled(*COLUMNS)
def against_ours(results: Results) -> Iterator[dict[str, Any]]:
    """Rivals against the recipe at the same budget; those without one, against its own."""
    for cell in results.cells.values():
        ours = opponent(results, cell)
        if ours and cell.role in ABOUT and cell.model == ours.model:
            found = compared(results, cell, ours, reading=READING, texts=TEXTS)
            yield from found.to_dict("records")
            yield from _without_budget(results, cell)


def _without_budget(results: Results, cell: Cell) -> Iterator[dict[str, Any]]:
    """A rival that keeps what it keeps."""
    own, ours = (only(results.rows_of(name), reading=READING, texts=TEXTS, condition="hard",
                      budget=budget)
                 for name, budget in ((cell.name, "own"), (OURS, BUDGET)))  # fmt: skip
    if len(own) and len(ours):
        yield beside(results, cell, *in_common(own, ours)) | {"budget": "own"}


@tabled()
def table(results: Results) -> Iterator[dict[str, Any]]:
    """A row a method and budget, the best first; changes in percent, with their intervals."""
    every = against_ours(results)
    for row in rows(results).sort_values(["budget", "change"]).to_dict("records"):
        own_kind = about(row["role"])
        known = row_of(every, cell=row["cell"], budget=row["budget"])
        yield {
            "method": ROLES.get(row["role"], row["cell"]), "experiment": row["experiment"],
            "source": own_kind.source, "budget": row["budget"],
            "distant_pairs_percent": 100 * row["distant_density"],
            **{name: 100 * row[name] for name in ("change", "low", "high")},
            **{f"{name}_against_ours": None if known is None else 100 * known[name]
               for name in ("change", "low", "high")},
            "seeds": row["seeds"], "documents": row["documents"],
            "choice_computes": own_kind.scores, "learns": own_kind.learns,
            **counted(results, row), "generates": own_kind.generates,
            "left_out": missing(results, row), "evidence": row["evidence"],
        }  # fmt: skip


def missing(results: Results, row: Mapping[Any, Any]) -> str:
    """What is left out against a method's paper, by the settings of this row, too."""
    plain = results.cells[row["cell"]].method.get("reallocate") is False
    kept = about(row["role"]).left_out
    return f"{kept}; the mean value for keys left out" if plain else kept


LONGER = 16384  # tokens: maps weigh less in longer texts
COUNTED = ["trained_parameters", "pairs_scored_percent", "choice_work_percent",
           f"choice_work_percent_{LONGER}", "fast_path"]  # fmt: skip


def counted(results: Results, row: Mapping[Any, Any]) -> dict[str, Any]:
    """Columns of :data:`COUNTED`, of a row on the common reading; None where not counted."""
    cell, groups = results.cells[row["cell"]], row_of(rows(results), cell=SEARCHES)
    share = None if groups is None else float(groups["distant_density"])
    trains = about(row["role"]).learns != NOTHING  # else what its start has learnt is not used
    number = choosing.trained(results, cell) if trains else 0
    (pairs, work), (_, longer) = (choosing.work(results, cell, int(tokens), share)
                                  for tokens in (row["context"], LONGER))  # fmt: skip
    return dict(zip(COUNTED, (number, pairs, work, longer, choosing.fast(cell)), strict=True))
