"""Tables, figures, the report page and the command itself, from small result files."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pandas as pd
import pytest

from analysis import __main__ as command
from analysis import figures, report, tables
from analysis.answers import FOUR
from analysis.comparisons import headline, quality
from analysis.figures import answers, equal, speed, style
from analysis.figures import quality as quality_figure
from analysis.pages import headline as opening
from analysis.pages import rivals
from analysis.results import Results
from tests.analysis.answer_files import write_answers, write_chat, write_ruler
from tests.analysis.group_files import (
    write_ablation,
    write_affinity,
    write_contents,
    write_cure,
    write_induction,
    write_information,
    write_picture,
)
from tests.analysis.result_files import (
    RECIPE,
    ROUTERS,
    losses,
    write_adapted,
    write_copying,
    write_leak,
    write_lengths,
    write_masks,
    write_paper,
    write_plan,
    write_positions,
    write_pretrained,
    write_read,
    write_table,
    write_training,
)
from tests.analysis.small_files import write_ladder, write_tuned, write_types

BUDGETS = {0.0625: 0.02, 0.125: 0.0, 0.25: -0.02}
WORSE = {budget: change + 0.1 for budget, change in BUDGETS.items()}


def labels(figure) -> set[str]:
    return {text.get_text() for text in figure.legends[0].get_texts()}


def lines(axis) -> dict[str, list[float]]:
    return {each.get_label(): list(each.lines[0].get_ydata()) for each in axis.containers}


@pytest.fixture
def filled(results):
    """One small file of every kind; books and plays as the pipeline has them."""
    root = results.root
    plays = {"reading": "plays", "texts": "plays"}
    for place, how in (("", {}), ("plays_", plays)):
        bases = [f"{place}adapted", f"{place}pretrained"]
        write_pretrained(root, block=bases[1], **how)
        write_adapted(root, block=bases[0], **how)
        write_masks(root, f"{place}recipe", BUDGETS, regime=ROUTERS, against=bases, **how)
        write_masks(root, f"{place}window", WORSE, method={"name": "window"}, against=bases, **how)
    write_paper(root, {1: 1.2, 2: 0.1}, **plays)
    for name, write in (("pretrained", losses("full")), ("adapted", losses("full", change=-0.1))):
        regime = {"name": "lora"} if name == "adapted" else {"name": "none"}
        write_read(root, name, write, reading="kinds", texts="code", regime=regime)
    write_masks(root, "recipe", BUDGETS, regime=ROUTERS, reading="kinds", texts="code")
    beside = {"reading": "rivals", "against": ["adapted", "pretrained", "recipe"]}
    write_adapted(root, reading="rivals")
    write_masks(root, "recipe", BUDGETS, regime=ROUTERS, **beside)
    for name, changes in (("quest", BUDGETS), ("performer", {"own": 0.5})):
        write_masks(root, name, changes, method={"name": name}, **beside)
    for shots, task in itertools.product((0, 10), FOUR):
        write_answers(root, shots=shots, exposure=0.1 * shots, task=task)
    write_ablation(root, "ablate", 0.1, 24.0)
    write_ablation(root, "ablate_groups", 0.1, 24.0, num_groups=32, against=["ablate"])
    write_ablation(root, "ablate_gate", 0.1, 24.0, gate="log", against=["ablate"])
    for mitigation in ("none", "sinkhorn"):
        write_cure(root, mitigation, 20.0)
    write_contents(root, 0.9)
    write_information(root, "held", "aabbccdd", "abcdabcd")
    search = {"reading": "search", "texts": "plays", "final": False, "regime": ROUTERS}
    write_masks(root, "plays_recipe", BUDGETS, against=[], **search)
    write_masks(root, "search_window", WORSE, cell="search_window-window64",
                against=["plays_recipe"], method=RECIPE | {"window": 64}, **search)  # fmt: skip
    write_types(root, 0.01, 0.1, models=["small-gpt2", "small-gemma2"])
    write_tuned(root, 0.01)
    write_ladder(root, [0.02, 0.03, 0.04], 0.3)
    write_lengths(root, 0.05)
    write_chat(root, 0.3, 0.2, costs=False)
    write_positions(root, 0.1)
    write_ruler(root, 0.2)
    write_training(root, "recipe", [3.0, 2.9, 2.8])
    write_leak(root, 0.08, 0.0)
    ours: dict[str, Any] = {"method": RECIPE, "regime": ROUTERS,
                            "against": ["adapted", "pretrained"]}  # fmt: skip
    write_induction(root, 0.35, 0.5, **ours)
    write_affinity(root, {"name": 0.4, "word": 0.3, "time": 0.2, "words": 0.1}, **ours)
    write_picture(root, "abab", "aabb", ";;;1", **ours)
    write_copying(root, "recipe", 1.0, budget=0.125, method=RECIPE, regime=ROUTERS,
                  against=["adapted", "pretrained"])  # fmt: skip
    write_table(root, "speed", *({"length": t, "speedup": s} for t, s in ((1024, 0.5), (4096, 2))))
    write_table(root, "exactness", {}, {"method": "subtraction", "output_cosine": 0.8})
    write_table(root, "decode", {"context": 512}, {}, {"method": "full_copy", "speedup": 0.5})
    write_table(root, "masks", {"method": "full", "time": 1.0}, {},
                {"method": "window", "K": None, "k": None, "budget": 0.125})  # fmt: skip
    write_table(root, "prefill", {}, {"length": 64, "speedup": 0.9, "bound": 1.0})
    write_table(root, "continuation", {"length": 512})
    write_plan(results.base)
    return results


def test_nothing_is_written_without_results_but_what_is_counted(results):
    written = {path.stem for path in tables.write(results, results.base / "tables")}
    assert written == set(tables.ALWAYS)
    assert figures.write(results, results.base / "figures") == []


def test_no_output_outlives_its_results(results):
    for write, name in ((figures.write, "quality.png"), (tables.write, "quality.csv")):
        (results.base / name).write_text("of an older run")
        write(results, results.base)
        assert not (results.base / name).exists()


def test_equal_results_give_equal_files(filled):
    paths = [filled.base / f"{name}.svg" for name in "ab"]
    for path in paths:
        style.save(quality_figure.draw(filled), [path])
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_quality_stands_against_density_between_the_full_models(filled):
    figure = quality_figure.draw(filled)
    assert labels(figure) == {
        "ours (recipe)", "wider window, n-gram keys", "adapted model, full attention",
        "pretrained model, full attention",
    }  # fmt: skip
    drawn = lines(figure.axes[0])["ours (recipe)"]
    assert drawn == pytest.approx([100 * (1 + c) / 0.9 - 100 for c in BUDGETS.values()], abs=0.1)
    assert "smollm2" in figure.get_suptitle()
    assert "seed a mark" in figure.get_suptitle()


def test_the_papers_way_stands_beside_ours_where_it_was_read_against_the_same_model(filled):
    write_paper(filled.root, {1: 1.2, 2: 0.1}, block="paper_books")
    results = Results(filled.base, against={
        "pretrained": (), "adapted": ("pretrained",), "recipe": ("adapted", "pretrained"),
        "paper_books": ("pretrained", "adapted"),
    })  # fmt: skip
    figure = quality_figure.draw(results)
    assert "the paper's setup (model not adapted)" in labels(figure)
    assert figure.axes[0].get_yscale() == "symlog"  # far off, and nothing else is flattened


def test_a_rival_and_a_sweep_appear_with_nothing_to_change_here(filled):
    write_masks(filled.root, "rival", WORSE, method={"name": "rival"})
    write_masks(filled.root, "ablation", BUDGETS, cell="ablation-window64", regime=ROUTERS,
                method=RECIPE | {"window": 64})  # fmt: skip
    results = Results(filled.base)
    assert {"rival", "ablation-window64"} <= set(quality(results)["cell"])
    assert {"rival", "ablation-window64"} <= set(tables.pareto(results)["cell"])
    assert {"rival", "ablation-window64"} <= set(tables.metrics(results))
    assert "rival" in labels(quality_figure.draw(results))


def test_no_figure_has_more_lines_than_an_eye_keeps_apart(filled):
    for number in range(9):
        write_masks(filled.root, f"rival{number}", WORSE, method={"name": f"rival{number}"})
    results = Results(filled.base)
    assert len(labels(quality_figure.draw(results))) == style.MOST == 7
    looks = [tuple(style.look(f"rival{n}", n).values()) for n in range(3)]
    assert len(set(looks)) == 3


def test_searches_name_what_they_change(filled):
    (axis,) = equal.searches(filled).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["window of 64"]


def test_speeds_are_drawn_as_they_were_measured(filled):
    (drawn, _) = speed.whole(filled).axes
    assert lines(drawn)["FocusConfig.recipe(), untrained routers"] == [0.9, 2.0]
    (axis,) = speed.decode(filled).axes
    assert lines(axis) == {"8 groups, 1 group a token, a router a layer": [2.0, 2.0]}
    assert lines(speed.draw(filled).axes[0])["ours"] == [0.5, 2.0]
    (bar,) = answers.copies(filled).axes[0].patches
    assert bar.get_width() == 80.0


def test_tables_mark_what_is_the_papers(filled):
    frame = tables.speed(filled)
    assert (frame["whose"] == "paper (H100)").sum() == 14
    assert (frame["whose"] == "ours").sum() == 2


def test_metrics_are_a_handful_an_experiment(filled):
    found = tables.metrics(filled)
    assert found["recipe"]["change"] == pytest.approx(100 / 0.9 - 100, abs=0.1)
    assert found["recipe"]["distant_pairs"] == 12.5
    assert all(len(values) <= 5 for values in found.values())


def test_scores_are_paired_by_question_and_by_length_where_the_task_has_that(results):
    write_answers(results.root, changed=2, exposure=0.25)
    row = tables.TABLES["benchmarks"](results).iloc[0]
    assert (row["questions"], row["base_score"], row["score"]) == (10, 100, 80)
    assert row["points"] == pytest.approx(-20)
    assert row["low"] < -20 < row["high"]
    assert (row["changed_percent"], row["exposed_pairs_percent"]) == (pytest.approx(20), 25)
    assert row["nats"] == pytest.approx(-0.5)


def test_a_mask_by_name_has_no_place_among_rivals_budgets(filled):
    beside = {"reading": "rivals", "against": ["adapted"]}
    write_masks(filled.root, "six", {"k6.multi_probe.causal": -0.1}, regime=ROUTERS,
                method=RECIPE | {"allocated": True, "heavy_hitters": 0.02}, **beside)  # fmt: skip
    results = type(filled)(filled.base)
    assert "k6.multi_probe.causal" in set(tables.TABLES["rivals"](results)["budget"])
    assert figures.FIGURES["rivals"].draw(results) is not None


def test_readme_names_rivals_and_ours_the_best_first(filled):
    text = rivals.beside(filled)
    assert text.count("ours (recipe)") == text.count("Quest") == 1
    assert "StreamingLLM" not in text
    frame = tables.TABLES["rivals"](filled)
    quest = frame[(frame["method"] == "Quest") & (frame["budget"] == "0.125")].iloc[0]
    assert quest["change_against_ours"] == pytest.approx(0, abs=0.1)
    performer = frame[frame["method"] == "Performer"].iloc[0]
    assert performer["change_against_ours"] == pytest.approx(50, abs=0.5)


def test_the_command_writes_everything_below_its_folder(filled):
    page = filled.base / "README.md"
    page.write_text("# T\n<!-- headline -->\n<!-- /headline -->\n")
    command.main(["--results", str(filled.base), "--pages", str(filled.base)])
    names = {path.stem for path in (filled.base / "tables").iterdir()}
    assert names == {*tables.TABLES, *tables.ALWAYS, "plan"}  # which the stage `cost` wrote
    drawn = list((filled.base / "figures").iterdir())
    assert {path.name for path in drawn} == {
        f"{name}.{suffix}" for name in figures.FIGURES for suffix in ("png", "svg")
    }
    for path in drawn:
        assert path.stat().st_size > 5000
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")
    assert "of the distant pairs" in page.read_text()
    metrics = json.loads((filled.base / "metrics.json").read_text())
    rows = pd.read_csv(filled.base / "claims.csv")
    assert sum(metrics["claims"].values()) == len(rows) == 448
    assert "recipe" in metrics["experiments"]
    page = (filled.base / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == len(figures.FIGURES)
    assert "http" not in page
    assert "{{" not in page


@pytest.mark.parametrize("scale", ["laptop", "smoke"])
def test_without_any_result_the_command_still_says_what_is_missing(tmp_path, capsys, scale):
    command.main(["--results", str(tmp_path / "new"), "--scale", scale])
    assert "not run" in capsys.readouterr().out
    page = (tmp_path / "new" / "report.html").read_text()
    assert page.count("no result files yet") == len(figures.FIGURES)


def test_text_on_the_page_is_escaped(filled, limits, tmp_path):
    from analysis import claims

    rows = claims.build(filled, limits)
    rows[-1]["why"] = "<b>&"
    text = report.write(filled, rows, tmp_path / "report.html").read_text()
    assert "&lt;b&gt;&amp;" in text


def test_the_headline_falls_back_on_whatever_trains_groups(results):
    write_pretrained(results.root)
    write_masks(results.root, "tiny", {0.25: 0.1}, regime=ROUTERS, against=["pretrained"])
    assert headline(results).cell == "tiny"
    drawn = labels(quality_figure.draw(results))  # nothing is called adapted that is not
    assert drawn == {"ours (recipe)", "pretrained model, full attention"}
    assert "adapted" not in opening.sentence(results) + opening.table(results)
    assert pd.notna(tables.metrics(results)["tiny"]["change"])


def test_rivals_that_are_not_drawn_are_counted(filled):
    for name, cost in (("sparq", 0.0), ("magicpig", 0.01), ("moba", 0.3), ("xattention", 0.4)):
        write_masks(filled.root, name, {0.125: cost}, method={"name": name}, reading="rivals",
                    against=["adapted"])  # fmt: skip
    figure = figures.FIGURES["rivals"].draw(type(filled)(filled.base))
    assert {"SparQ", "MagicPIG", "Quest"} <= labels(figure)
    assert "MoBA" not in labels(figure)
    assert "2 methods that cost more" in figure.get_suptitle()


def test_every_figure_is_titled(filled, tmp_path, monkeypatch):
    assert set(figures.FIGURES) == set(figures.DRAWN)
    seen = {}

    def save(figure, paths):
        seen[paths[0].stem] = figure.get_suptitle()
        return paths

    monkeypatch.setattr(style, "save", save)
    figures.write(filled, tmp_path)
    assert len(seen) > 5
    assert all(text.startswith(figures.FIGURES[name].title) for name, text in seen.items())
