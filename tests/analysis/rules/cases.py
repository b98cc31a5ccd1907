"""Rule by rule: a claim, files in its favour, the verdict, files against it."""

from __future__ import annotations

import pytest

from tests.analysis.rules.writers import (
    ALL,
    ARITHMETIC,
    CONTRADICTS,
    DENSER,
    DIRECTION,
    FULL_MILLION,
    GPT2,
    GROWING,
    H100,
    H200,
    IN_SETTING,
    INCONCLUSIVE,
    LATE,
    LONG,
    MILLION,
    NOT_REPRODUCED,
    ONE_HEAD,
    REPRODUCED,
    SCRATCH_NAMES,
    SHRINKING,
    SLOW,
    SORTING,
    THEIR_GPT2,
    THEIR_STEPS,
    TOP2,
    TRAINED,
    Writer,
    ablated,
    again,
    allocated,
    answers,
    asked,
    at_two_rates,
    beside_lora,
    beside_window,
    both,
    both_lengths,
    copied,
    costly_pair,
    counts,
    cures,
    dense,
    family,
    fresh,
    gpu,
    heavy,
    holds,
    leaks,
    left_out,
    lengths,
    linked,
    longer,
    lora,
    lora_asked,
    many_shot,
    masked,
    on_gpu,
    pairs,
    paper,
    paper_linked,
    persisting,
    printed,
    rivals,
    rivals_answers,
    rungs,
    seconds,
    settled,
    soft,
    steps_on_gpu,
    summed,
    sure,
    table,
    talked,
    talked_later,
    tuned,
    types,
    unsure,
)

# Rule -> claim, files in its favour, verdict, files against it.
CASES: dict[str, list[tuple[str, Writer, str, Writer]]] = {
    "sparse_perplexity": [
        ("table7.gpt2-124m.k2.ppl", paper({2: 41.3 / 20.0855 / 1.284 - 1}, **IN_SETTING),
         REPRODUCED, paper({2: 0.5}, **IN_SETTING)),
        ("table7.gpt2-124m.k1.delta", paper({1: 1.2}, with_sinks=0.02, **GPT2), DIRECTION,
         paper({1: 0.02}, **GPT2)),
        ("table7.gpt2-124m.k2.delta", paper({2: -0.05}, **GPT2), DIRECTION,
         paper({2: 0.05}, **{**GPT2, "texts": "plays", "regime": TRAINED})),
        ("table7.mistral-7b.k1.ppl", paper({1: 1.2}, with_sinks=0.02), DIRECTION,
         paper({1: 0.02})),  # another model stands in
    ],
    "retained": [
        ("table7.mistral-7b.k2.pairs_retained", paper({2: 0.1}, {"distant_density": 0.75}),
         DIRECTION, paper({2: 0.1}, {"distant_density": 0.3})),
        ("table7.gpt2-124m.k2.pairs_retained", paper({2: 0.1}, {"distant_density": 0.6}, **GPT2),
         DIRECTION, paper({2: 0.1}, {"distant_density": 0.95}, **GPT2)),
    ],
    "faster_and_better": [
        ("figure1.pareto.finding", both(paper({2: -0.05}, regime=TRAINED), masked(0.4)), DIRECTION,
         both(paper({2: 0.05}, regime=TRAINED), masked(0.4))),
        ("figure1.pareto.finding", both(paper({2: -0.05}, regime=TRAINED), masked(0.4)), DIRECTION,
         both(paper({2: -0.05}, regime=TRAINED), masked(1.2))),
        ("figure1.pareto.finding", both(paper({2: 0.05}), masked(0.4)), INCONCLUSIVE,
         both(paper({2: 0.05}, regime=TRAINED), masked(0.4))),
    ],
    "soft_against_hard": [("audit.6", soft(0.2), DIRECTION, soft(0.001))],
    "dense_rows": [
        ("table7.gpt2-124m.k3.pairs_retained", dense(0.0), ARITHMETIC, dense(0.001)),
        ("table7.gpt2-124m.k3.delta", dense(0.0), CONTRADICTS, dense(0.0, 0.99)),
        ("table7.gpt2-124m.k4.ppl", dense(0.0), CONTRADICTS, dense(0.01)),
        ("table7.mistral-7b.k3.speedup", dense(0.0), CONTRADICTS, dense(0.01)),
        ("table7.mistral-7b.k4.ppl", dense(0.0), ARITHMETIC, dense(0.01)),
    ],
    "top3_is_everything": [
        ("audit.1", dense(0.0), ARITHMETIC, dense(0.001)),
        ("long_context.t1024.ppl_topk3", dense(0.0), ARITHMETIC, dense(0.001)),
        ("long_context.t8192.ppl_topk3", dense(0.0), CONTRADICTS, dense(0.001)),
    ],
    "table7_speedup": [
        ("table7.gpt2-124m.k1.speedup", gpu(H200, {"K": 4, "heads": 12, "method": "ours",
                                                   "speedup": 3.8}),
         DIRECTION, gpu(H200, {"K": 4, "heads": 12, "method": "ours", "speedup": 2.0})),
        ("table7.gpt2-124m.k1.speedup",  # the paper's own calls, where they were timed
         gpu(H200, *({"K": 4, "heads": 12, "method": method, "speedup": speed}
                     for method, speed in (("ours", 6.0), ("paper_k1", 3.8)))), DIRECTION,
         gpu(H200, *({"K": 4, "heads": 12, "method": method, "speedup": speed}
                     for method, speed in (("ours", 3.8), ("paper_k1", 2.0))))),
    ],
    "top2_bound": [
        ("audit.2", paper({2: 0.1}, {"density": 0.8}), ARITHMETIC, paper({2: 0.1}, TOP2)),
        ("audit.2", paper({2: 0.1}, {"density": 0.8}), ARITHMETIC,
         both(paper({2: 0.1}, {"density": 0.8}), table("speed", {"K": 4, "k": 2, "speedup": 2.1}))),
    ],
    "counted": [
        ("table3.focus-r16.trained_params", counts("parameters"), ARITHMETIC,
         counts("parameters", {"ours": 5.0})),
        ("table1.focus.trained_params", counts("parameters"), CONTRADICTS,
         counts("parameters", {"also": None})),
        ("table1.longformer.trained_params", counts("parameters"), ARITHMETIC,
         counts("parameters", {"ours": 5.0})),
    ],
    "spread": [("audit.7", counts("repeated"), CONTRADICTS, counts("repeated", {"paper": 3.0}))],
    "confound": [
        ("audit.12", counts("confound"), ARITHMETIC, counts("confound", {"against_adapted": 0.0}))
    ],
    "log_sum_exp": [
        ("decomposition.log-sum-exp.cosine", table("exactness", {}, {}), DIRECTION,
         table("exactness", {}, {"output_cosine": 0.99})),
    ],
    "subtraction": [
        ("decomposition.subtraction.cosine",
         table("exactness", {"method": "subtraction", "output_cosine": 0.8}), DIRECTION,
         table("exactness", {"method": "subtraction"})),
    ],
    "suffix_changes_the_past": [
        ("audit.5", leaks(0.08, 0.0), DIRECTION, leaks(0.0, 0.0)),
        ("audit.5", leaks(0.08, 0.0), DIRECTION, leaks(0.08, 0.02)),
    ],
    "routing_against_chance": [
        ("audit.9", family(0.0, control=-0.03), DIRECTION, family(0.0, control=0.05))
    ],
    "spread_of_seeds": [
        ("audit.10", paper({2: 0.1}, {"seeds": (0, 1, 2), "apart": 0.01}), DIRECTION,
         paper({2: 0.1}, {"seeds": (0, 1, 2), "wobble": 0.02})),
    ],
    "any_training": [
        ("audit.11", beside_lora(-0.1, -0.02), DIRECTION, beside_lora(0.1, -0.02)),
        ("audit.11", beside_lora(-0.1, -0.02), DIRECTION, beside_lora(-0.1, -0.2)),
    ],
    "cost": [
        ("ours.headline.adapted.0.125", family(-0.1), REPRODUCED, family(0.0)),
        ("ours.headline.pretrained.0.0625", family(-0.02), REPRODUCED, family(0.02)),
        ("ours.plays.adapted.0.125", family(-0.1, place="plays_"), REPRODUCED,
         family(0.0, place="plays_")),
        ("ours.heavy.adapted.0.125", heavy(-0.1), REPRODUCED, heavy(0.0)),
        ("ours.heavy.recipe.0.125", heavy(-0.02), REPRODUCED, heavy(0.02)),
        ("ours.allocated.adapted.0.125", allocated(-0.1, 0.0), REPRODUCED, allocated(0.0, 0.0)),
        ("ours.allocated.heavy.0.125", allocated(-0.1, 0.0), REPRODUCED, allocated(0.0, -0.1)),
        ("ours.longer_allocated.adapted.0.125", allocated(-0.1, 0.0), REPRODUCED,
         allocated(0.0, 0.0)),
    ],
    "elsewhere": [
        ("ours.fresh.recipe", fresh(-0.05), REPRODUCED, fresh(0.1)),
        ("ours.fresh.calibrated", fresh(0.1), REPRODUCED, fresh(0.1, 0.1)),
        ("ours.fresh.calibration", fresh(0.1), REPRODUCED, fresh(-0.1, 0.1)),
    ],
    "further": [
        ("ours.chat.1024", talked(0.3, 0.1), REPRODUCED, talked(0.1, 0.3)),
        ("ours.chat.1024", both(talked(0.1, 0.3), talked_later(0.3, 0.1)), REPRODUCED,
         both(talked(0.3, 0.1), talked_later(0.1, 0.3))),
    ],
    "beyond_control": [
        ("ours.ruler.window", beside_window(0.0), REPRODUCED, beside_window(1.0)),
    ],
    "answers_found": [("ours.answers.recipe", asked(1.0), REPRODUCED, asked(0.0))],
    "grows": [("ours.ladder.grows", rungs(GROWING), REPRODUCED, rungs(SHRINKING))],
    "forecasts": [
        ("ours.ladder.135m.k1", rungs(GROWING, 0.065), REPRODUCED, rungs(GROWING, 0.4)),
        ("ours.ladder.135m.k2", rungs(GROWING, 0.065), REPRODUCED, rungs(GROWING, 0.4)),
        ("ours.ladder.135m.density", rungs(DENSER, 0.0655), REPRODUCED, rungs(DENSER, 0.8)),
    ],
    "left_out": [
        ("ours.copying.groups", left_out(0.35, 0.5), REPRODUCED, left_out(0.6, 0.5)),
        ("ours.copying.groups", left_out(0.35, 0.5), REPRODUCED, left_out(0.35, -0.5)),
    ],
    "affine": [
        ("ours.affinity.name", linked(name=0.4, word=0.3), REPRODUCED, linked(name=0.2, word=0.3)),
        ("ours.affinity.time", linked(time=0.4, words=0.2), REPRODUCED,
         linked(time=0.05, words=0.02)),
        ("ours.paper_affinity.name", paper_linked(name=0.4, word=0.3), REPRODUCED,
         paper_linked(name=0.2, word=0.3)),
    ],
    "found_again": [("ours.copying", copied(0.6), REPRODUCED, copied(2.0))],
    "whole_model": [
        (f"ours.whole.{phase}.{what}", table(stage, own), REPRODUCED, table(stage, own | SLOW))
        for what, own in (("recipe", {}), ("allocated", {"experiment": "allocated"}))
        for phase, stage in (("forward", "prefill"), ("generation", "continuation"))
    ],
    "speedup": [
        ("table6.t16384.speedup_K8", gpu(H100, {"speedup": 1.9}), DIRECTION,
         gpu(H100, {"speedup": 4.0})),
        ("table6.t16384.speedup_K8",  # between two shapes
         gpu(H100, {"speedup": 1.2}, {"speedup": 3.0, "heads": 12}), DIRECTION,
         gpu(H100, {"speedup": 2.5}, {"speedup": 3.0, "heads": 12})),
        ("table6.t16384.speedup_K8",  # one shape speaks for the whole table
         gpu(H100, {"speedup": 3.0}, {"speedup": 1.9, "heads": 12},
             *({"speedup": 0.2, "length": 1024, "K": k} for k in (4, 8))),
         DIRECTION,
         gpu(H100, {"speedup": 3.0}, {"speedup": 4.0, "heads": 12})),
        ("table6.t16384.speedup_K8", gpu(H200, {"speedup": 1.9}), DIRECTION,
         gpu(H200, {"speedup": 0.5})),
    ],
    "ours_beside_the_fastest": [
        ("ours.gpu.attention",
         gpu(H100, seconds(1.0, method="ours"), seconds(2.0, method="full_other", K=None)),
         REPRODUCED,
         gpu(H100, seconds(1.0, method="ours"), seconds(0.5, method="full_other", K=None))),
    ],
    "ours_beside_two_calls": [
        ("ours.gpu.two_calls", gpu(H100, seconds(1.0, method="ours"), seconds(2.0)), REPRODUCED,
         gpu(H100, seconds(1.0, method="ours"), seconds(0.5))),
    ],
    "whole_on_gpu": [
        (f"ours.gpu.{phase}.recipe", steps_on_gpu(step, on_gpu(1024, 0.5), on_gpu(65536, 1.3)),
         REPRODUCED, steps_on_gpu(step, on_gpu(1024, 1.5), on_gpu(65536, 0.9)))
        for phase, step in (("forward", "prefill"), ("generation", "generation"))
    ],
    "sorting": [
        ("table6.notes.sort-and-gather-at-1m.milliseconds",
         steps_on_gpu("parts", SORTING, full=[FULL_MILLION]), DIRECTION,
         steps_on_gpu("parts", SORTING | {"other_s": 1.0}, full=[FULL_MILLION])),
    ],
    "rival": [
        ("table1.performer.ppl", rivals(performer=0.8), DIRECTION, rivals(performer=-0.1)),
        ("table10.sparq.ppl", rivals(sparq_plain=0.1), DIRECTION,
         rivals(sparq_plain=-0.04, kept=0.02)),
        ("table10.sparq.ppl",  # the one with as few keys as the paper's is judged
         rivals(sparq_plain=-0.04, sparq_plain_few=0.1, kept=0.02), DIRECTION,
         rivals(sparq_plain=0.1, sparq_plain_few=-0.04, kept=0.02)),
    ],
    "others_do_it": [
        ("audit.8", rivals(quest=-0.03, moba=0.4), DIRECTION, rivals(quest=0.3, csa=-0.03)),
    ],
    "none_is_better": [
        ("ours.rivals", rivals(quest=0.03, csa=-0.03), REPRODUCED, rivals(quest=-0.02, moba=0.4)),
    ],
    "adapted_under_the_mask": [("ours.masked", again(-0.09), REPRODUCED, again(-0.05))],
    "unchanged": [
        ("table1.focus.hellaswag", answers(0, 0.0), ARITHMETIC, answers(8, 0.2)),
        ("table4.focus-k2.hellaswag", answers(0, 0.1), DIRECTION, answers(9, 0.1)),
        ("table1.focus.hellaswag", answers(0, 0.1), DIRECTION, answers(9, 0.1)),
    ],
    "after_examples": [("ours.many_shot.paper", many_shot(0), REPRODUCED, many_shot(9))],
    "retrofit": [
        ("table2.gpt2-124m.ppl_focus",
         types(34.2 / 20.0855 / 1.284 - 1, 0.1, TRAINED, **THEIR_GPT2), REPRODUCED,
         types(0.5, 0.1, TRAINED, **THEIR_GPT2)),
        ("table2.gpt2-124m.ppl_focus", types(-0.15, 0.1), DIRECTION, types(0.05, 0.1, TRAINED)),
        ("table2.mistral-7b.ppl_focus", types(0.0, 0.01), DIRECTION, types(0.0, 0.3, TRAINED)),
        ("table2.llama-2-13b.ppl_focus", types(0.0, 0.01), DIRECTION, types(0.0, 0.05, TRAINED)),
    ],
    "every_type": [
        ("table2.notes.coverage.architectures", types(0.01, 0.1), DIRECTION, types(0.2, 0.3)),
    ],
    "score": [
        ("table2.mistral-7b.hellaswag", answers(0, 0.1), DIRECTION, answers(9, 0.1)),
    ],
    "worst_drop": [
        ("table2.notes.benchmarks.worst_drop", answers(0, 0.1), DIRECTION, answers(9, 0.1)),
    ],
    "tuned": [
        ("table5.gpt2-large-774m.ppl_focus_ft", tuned(0.01), DIRECTION, tuned(0.1, steps=4000)),
        ("domains.openwebtext.ppl_focus_ft", tuned(-0.03, texts="essays"), DIRECTION,
         tuned(0.03, texts="essays", steps=4000)),
        ("from_scratch.mistral-7b.ppl_focus", tuned(0.0, texts="articles", names=SCRATCH_NAMES),
         DIRECTION, tuned(0.1, texts="articles", names=SCRATCH_NAMES, steps=4000)),
    ],
    "alone": [
        (f"{table}.focus.ppl", soft(-0.15, -0.15, TRAINED), DIRECTION, soft(0.05, 0.03, TRAINED))
        for table in ("table1", "table10")
    ],
    "full_attention": [
        ("table2.gpt2-124m.ppl_pretrained", printed(42.5, "types-modelgpt2", "gpt2"), REPRODUCED,
         printed(37.0, "types-modelgpt2", "gpt2")),
        ("long_context.t4096.ppl_full",
         printed(5.45, "long_pretrained", "mistral-7b", context=4096), REPRODUCED,
         printed(6.45, "long_pretrained", "mistral-7b", context=4096)),
        ("domains.wikitext-103.ppl_full_attention_ft",
         printed(21.4, "finetuned-textswikitext-103", "gpt2", texts="wikitext-103", regime=ALL),
         REPRODUCED, printed(26.0, "finetuned-textswikitext-103", "gpt2", texts="wikitext-103",
                             regime=ALL)),
    ],
    "gains": [
        ("table1.full-attention-finetune.ppl", tuned(0.0), DIRECTION,
         tuned(0.0, full=0.1, steps=4000)),
        ("table5.gpt2-124m.ppl_full_attention_ft", tuned(0.0), DIRECTION,
         tuned(0.0, full=0.1, steps=4000)),
    ],
    "rival_score": [
        ("table1.performer.lambada", rivals_answers(180, "performer"), DIRECTION,
         rivals_answers(0, "performer")),
        ("table10.sparq-mean-reallocation.lambada", rivals_answers(0, "sparq"), DIRECTION,
         rivals_answers(180, "sparq")),
        # Whatever is under our window is no evidence of the paper's 32 keys a query.
        ("table10.sparq-mean-reallocation.lambada", rivals_answers(0, "sparq", 0.0), INCONCLUSIVE,
         rivals_answers(180, "sparq")),
        # So the reading with as many keys is judged, where there is one.
        ("table10.sparq-mean-reallocation.lambada",
         both(rivals_answers(180, "sparq"), rivals_answers(0, "sparq_keys")), DIRECTION,
         both(rivals_answers(0, "sparq"), rivals_answers(180, "sparq_keys"))),
        # Of a hundred answers of which none changes up to three may.
        ("table10.sparq-mean-reallocation.lambada", rivals_answers(0, "sparq", questions=100),
         INCONCLUSIVE, rivals_answers(180, "sparq")),
    ],
    "sums": [
        ("gsm8k.mistral-7b.focus.accuracy", summed(0, steps=4000), DIRECTION,
         summed(9, steps=4000)),
    ],
    "longer": [
        ("long_context.t8192.ppl_topk2", longer(0.05), DIRECTION, longer(0.2, steps=4000)),
        ("long_context.t1024.ppl_topk2",  # of two trainings the longer one is judged
         both(longer(0.2), longer(0.02, name="paper_steps", steps=4000)), DIRECTION,
         both(longer(0.02), longer(0.2, name="paper_steps", steps=4000))),
    ],
    "pair_of_groups": [
        ("table9.notes.k2.window.512.ppl_window_change", pairs(0.1, 512), DIRECTION,
         pairs(-0.2, 512, TRAINED)),
        ("table9.notes.k2.window.16.ppl", pairs(0.1, 512), DIRECTION,
         costly_pair),
    ],
    "setting_changed": [
        ("table9.k.32.centroid_ppl", ablated(0.1, 24.0, num_groups=32), DIRECTION,
         ablated(-0.1, 24.0, TRAINED, num_groups=32)),
        ("table9.window.512.centroid_ppl", ablated(0.0, 24.0, TRAINED, window=512), DIRECTION,
         ablated(-0.1, 24.0, TRAINED, window=512)),
        ("table9.tau.0.05.finetuned_ppl", ablated(0.0, 24.0, LONG, temperature=0.05), DIRECTION,
         ablated(0.1, 24.0, LONG, temperature=0.05)),
    ],
    "dimensions": [
        ("routing_dim.r768.ppl", ablated(0.0, 24.0, TRAINED, routing_dim=576), DIRECTION,
         ablated(-0.1, 24.0, TRAINED, routing_dim=576)),
    ],
    "groups_changed": [
        ("table9.sinkhorn-iterations.3.dominance_centroid",
         at_two_rates(90.0, TRAINED, sinkhorn_iterations=3), DIRECTION,
         at_two_rates(12.0, TRAINED, sinkhorn_iterations=3)),
        ("table9.k.4.dominance_centroid", at_two_rates(36.5, TRAINED, num_groups=4), DIRECTION,
         at_two_rates(24.0, TRAINED, num_groups=4)),  # even groups would have 12.5 points more
        ("table9.window.512.dominance_full_ft", at_two_rates(24.0, LONG, window=512), DIRECTION,
         at_two_rates(50.0, LONG, window=512)),
    ],
    "escape": [
        ("table8.sinkhorn.drift", cures(("sinkhorn", 13.0, {"drift": 0.1})), DIRECTION,
         cures(("sinkhorn", 13.0, {"drift": 0.5}))),
        ("table8.balance-weight-x5.drift", cures(("softmax_x5", 30.0, {"drift": 0.4})),
         DIRECTION, cures(("softmax_x5", 30.0, {"drift": 0.9}))),
        ("table8.stop-gradient-on-inputs.projection", cures(("stop_gradient", 30.0, {})), DIRECTION,
         cures(("stop_gradient", 30.0, {"rank": 9.9}))),
    ],
    "outcome": [
        ("table8.sinkhorn.outcome",
         both(cures(("sinkhorn", 13.0, {"agreement": 0.99})), holds(0.9)), DIRECTION,
         cures(("sinkhorn", 60.0, {"agreement": 0.5}))),
        ("table8.entropy-and-balance-loss.outcome",
         cures(("softmax", 90.0, {}), ("sinkhorn", 13.0, {})), DIRECTION,
         cures(("softmax", 13.0, {"steps": 4000}), ("sinkhorn", 13.0, {"steps": 4000}))),
    ],
    "largest_group": [
        ("dominance.sinkhorn.dominance_full_ft", cures(("sinkhorn", 14.0, {})), DIRECTION,
         cures(("sinkhorn", 60.0, {}))),
        ("dominance.softmax-and-balance-loss.dominance_full_ft", cures(("softmax", 90.0, {})),
         DIRECTION, cures(("softmax", 13.0, {"steps": 4000}))),
        ("dominance.sinkhorn.dominance_centroid",
         cures(("sinkhorn", 14.0, {"weights": False})), DIRECTION,
         cures(("sinkhorn", 60.0, {"weights": False}))),
    ],
    "stays": [
        ("dominance.sinkhorn.stability_full_ft", cures(("sinkhorn", 14.0, {"agreement": 0.99})),
         DIRECTION, cures(("sinkhorn", 14.0, {"agreement": 0.5, "steps": 4000}))),
    ],
    "converged": [
        ("ours.sinkhorn.converged", settled(15.0, 14.0), DIRECTION, settled(70.0, 14.0)),
    ],
    "beside_losses": [
        ("ours.sinkhorn.losses", cures(("sinkhorn", 13.0, LATE), ("softmax", 22.0, LATE)),
         DIRECTION, cures(("sinkhorn", 31.0, LATE), ("softmax", 22.0, LATE))),
    ],
    "lora_perplexity": [
        ("table3.lora-r4.ppl", lora(-0.2), DIRECTION, lora(0.1)),
        ("table3.lora-r16.ppl", both_lengths(0.1, -0.2), DIRECTION, both_lengths(-0.2, 0.1)),
        ("table4.lora-r4-lr1e-5.ppl", lora(-0.1), DIRECTION, lora(0.1)),
    ],
    "lora_score": [
        ("table4.lora-r4-lr1e-4.hellaswag", lora(0.2, rate=0.01, wrong=30), DIRECTION,
         lora(0.2, rate=1e-4, wrong=-30, **THEIR_STEPS)),
        ("table4.lora-r4-lr1e-4.hellaswag", lora(0.2, rate=1e-4, wrong=30, **THEIR_STEPS),
         DIRECTION, lora(0.2, rate=1e-4, wrong=2, **THEIR_STEPS)),  # far less
        ("table4.lora-r4-lr1e-4.hellaswag", lora_asked(120), DIRECTION, lora_asked(1)),
    ],
    "category": [
        ("groups.g4.category", holds(0.9), DIRECTION, holds(0.45, kmeans=0.2, regime=TRAINED)),
        ("groups.g3.category", holds(0.9, category="determiners"), DIRECTION,
         holds(0.9, regime=TRAINED)),
        ("groups.g4.category", holds(0.9), DIRECTION,  # k-means has a purer one in another layer
         holds(0.9, last=0.95, regime=TRAINED)),
    ],
    "pure": [("groups.g4.purity", holds(0.95), DIRECTION, holds(0.6, regime=TRAINED))],
    "tokens": [
        ("groups.g4.top_tokens", holds(0.9), DIRECTION, holds(0.9, top="a the", regime=TRAINED)),
        ("groups.g5.top_tokens", holds(0.9, category="connectives", top="who and"), DIRECTION,
         holds(0.9, top="who and", regime=TRAINED)),  # no group of connectives
    ],
    "even": [
        ("groups.notes.assignment.largest_share", holds(0.9, regime=TRAINED), DIRECTION,
         holds(0.9, even=9000, regime=TRAINED)),
        ("groups.notes.assignment.confidence", sure(20.0), DIRECTION, unsure),
    ],
    "persists": [
        ("groups.notes.full-finetuning.persists", persisting(0.9, regime=TRAINED), DIRECTION,
         persisting(0.6, regime=TRAINED)),
    ],
    "unexposed": [("audit.4", answers(0, 0.0), DIRECTION, answers(0, 0.3))],
    "crossover": [
        ("ours.speed.crossover", table("speed", *lengths(0.5, 2.0)), DIRECTION,
         table("speed", *lengths(2.0, 3.0))),
        ("table6.notes.crossover.slowest_context_with_gain", gpu(H100, *lengths(0.5, 2.0)),
         DIRECTION, gpu(H100, *lengths(0.3, 0.5))),
        ("table6.notes.crossover.slowest_context_with_gain", gpu(H200, *lengths(0.5, 2.0)),
         DIRECTION, gpu(H200, *lengths(0.3, 0.5))),
    ],
    "full_seconds": [
        ("table6.notes.full-attention-at-1m.seconds", gpu(H100, FULL_MILLION), INCONCLUSIVE,
         gpu(H100, ONE_HEAD)),
    ],
    "above_the_bound": [
        ("audit.3", gpu(H200, FULL_MILLION, {"bound": 7.9, "speedup": 6.0, **MILLION}), ARITHMETIC,
         gpu(H200, FULL_MILLION, {"bound": 7.9, "speedup": 9.0, **MILLION})),
    ],
}  # fmt: skip
EVERY = [
    pytest.param(claim, writer, expected, id=f"{name}-{number}-{expected}")
    for name, cases in CASES.items()
    for number, (claim, good, verdict, bad) in enumerate(cases)
    for writer, expected in ((good, verdict), (bad, NOT_REPRODUCED))
]
