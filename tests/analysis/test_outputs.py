"""Tables, figures, the report page and the command itself, from small result files."""

from __future__ import annotations

import json
import math
from typing import get_args

import pandas as pd
import pytest

from analysis import __main__ as command
from analysis import figures, tables
from analysis.figures import copying, decode, pareto, search, style, transfer, whole
from experiments.recipe_settings import ORACLES, Control
from tests.analysis.result_files import (
    pretrained,
    row,
    write_copying,
    write_decode,
    write_exactness,
    write_generation,
    write_leak,
    write_losses,
    write_recipe,
    write_speed,
    write_topk,
    write_transfer,
    write_whole,
)


@pytest.fixture
def filled(results):
    """One small file of every stage."""
    rows = [
        row(top_k=k, density=d, delta=x, delta_low=x - 0.01, delta_high=x + 0.01, balance=b)
        for k, d, x in ((1, 0.4, 0.4), (2, 0.86, 0.02))
        for b in ("sinkhorn", "causal")
    ]
    write_topk(results.root, [pretrained(), *rows])
    lengths = [{"length": t, "speedup": s} for t, s in ((1024, 0.5), (4096, 2.0), (16384, 5.0))]
    write_speed(results.root, *lengths, {"method": "stripes", "speedup": 5.0})
    write_exactness(results.root, {}, {"method": "subtraction", "output_cosine": 0.8})
    write_leak(results.root, 0.08, 0.0)
    return results


def test_tables_mark_what_is_the_papers(filled):
    tables.write(filled, filled.root / "tables")
    topk = pd.read_csv(filled.root / "tables" / "topk.csv")
    assert list(topk["whose"][:5]) == ["ours"] * 5
    assert topk["whose"][5:].str.startswith("paper").all()
    assert len(topk) == 5 + 8
    speed = pd.read_csv(filled.root / "tables" / "speed.csv")
    assert (speed["whose"] == "paper (H100)").sum() == 14
    text = (filled.root / "tables" / "topk.md").read_text()
    assert text.count("\n") == 2 + 13


def test_nothing_is_written_without_results_but_what_is_counted(results):
    written = {path.name for path in tables.write(results, results.root / "tables")}
    assert written == {"parameters.csv", "parameters.md", "repeated.csv", "repeated.md"}
    assert figures.write(results, results.root / "figures") == []


def test_finalists_and_controls_stand_in_the_pareto_figure(results):
    pretrained_row = {"kind": "pretrained", "reading": "pretrained", "delta": 0.0}
    write_recipe(
        results.root, "default", pretrained_row, {},
        {"reading": "symmetric.k2", "top_k": 2, "distant_density": 0.25, "delta": 0.0},
        {"kind": "random", "delta": 0.2, "delta_low": 0.1, "delta_high": 0.3},
        {"kind": "oracle", "delta": -0.01},
    )  # fmt: skip
    write_recipe(results.root, "searched", {"final": False})
    figure = pareto.draw(results)
    assert figure is not None
    labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert labels == {"default (K = 16, 3 seeds)", "random routers", pareto.CONTROLS["oracle"]}
    found = tables.recipe(results)
    assert list(found["trial"]) == ["default"] * 5 + ["searched"]
    write_recipe(results.root, "default", {"final": False})
    del results.__dict__["recipe"]
    assert pareto.draw(results) is None


def test_every_control_has_a_look_and_a_name_of_its_own(results):
    kinds = (*get_args(Control), "unheard-of")
    rows = [{"kind": kind} for kind in kinds]
    further = [{"kind": kind, "ngram": 3} for kind in kinds if kind not in ORACLES]
    write_transfer(results.root, "pg19", {}, *rows, *further)
    write_recipe(results.root, "default", {}, *rows, *further)
    for figure in (pareto.draw(results), transfer.draw(results)):
        labels = {text.get_text() for text in figure.legends[0].get_texts()}
        own = {pareto.CONTROLS.get(kind, kind) for kind in kinds}
        assert own <= labels
        assert {f"{pareto.CONTROLS['token']}, with 3-grams", "unheard-of, with 3-grams"} < labels
        assert len(labels) == 1 + len(rows) + len(further)
        lines = {line.get_label(): line.lines[0] for line in figure.axes[0].containers}
        looks = {(lines[name].get_color(), lines[name].get_marker()) for name in own}
        assert len(looks) == len(kinds)
    assert set(tables.recipe(results)["kind"]) == {"routed", *kinds}
    assert set(tables.transfer(results)["kind"]) == {"routed", *kinds}


def test_masks_with_ngrams_are_a_line_of_their_own(results):
    """Beside files from before there were any."""
    write_recipe(results.root, "older", {})
    write_recipe(results.root, "newer", {"ngram": 0}, {"ngram": 2, "distant_density": 0.09})
    labels = {text.get_text() for text in pareto.draw(results).legends[0].get_texts()}
    newer = "newer (K = 16, 3 seeds)"
    assert labels == {"older (K = 16, 3 seeds)", newer, f"{newer}, with 2-grams"}
    assert sorted(tables.recipe(results)["ngram"]) == [0, 0, 2]


def test_other_texts_stand_beside_each_other(results):
    assert transfer.draw(results) is None
    pretrained_row = {"kind": "pretrained", "reading": "pretrained", "delta": 0.0}
    write_transfer(results.root, "wikitext-2", pretrained_row, {}, {"kind": "window"})
    write_transfer(results.root, "pg19", pretrained_row, {})
    del results.__dict__["transfer"]
    figure = transfer.draw(results)
    assert [axis.get_title("left").split(":")[0] for axis in figure.axes] == ["pg19", "wikitext-2"]
    assert list(tables.transfer(results)["corpus"]) == ["pg19"] * 2 + ["wikitext-2"] * 3


def test_what_is_copied_stands_between_unread_and_pretrained(results):
    assert copying.draw(results) is None
    for trial in ("prose", "copies"):
        write_copying(
            results.root, trial, {"kind": "pretrained", "copied": 1.0}, {},
            {"reading": "symmetric.k2", "distant_density": 0.2, "copied": 0.5},
            {"kind": "random", "copied": 0.01}, {"kind": "new", "copied": 0.0},
        )  # fmt: skip
    del results.__dict__["copying"]
    figure = copying.draw(results)
    labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert labels == {"prose (K = 16, 3 seeds)", "copies (K = 16, 3 seeds)", "random routers"}
    line = figure.axes[0].containers[0].lines[0]
    assert list(line.get_ydata()) == [20.0, 50.0]
    assert len(tables.copying(results)) == 10


def test_searched_trials_are_compared_with_their_base_by_document(results):
    full = {"a": 1.0, "b": 1.0}
    assert search.draw(results) is None
    for trial, losses in (("search", (3.0, 4.0)), ("search_k4", (3.1, 4.3))):
        write_recipe(results.root, trial, {"final": False})
        own = {"symmetric.k1": dict(zip("ab", losses, strict=True)), "pretrained": full}
        full = {"a": 1.05, "b": 1.05}  # the second's processor rounds otherwise
        write_losses(results.root, trial, own)
    write_recipe(results.root, "default", {})
    write_losses(results.root, "default", {"symmetric.k1": {"a": 1.0}, "pretrained": full})
    del results.__dict__["recipe"], results.__dict__["search_documents"]
    (row,) = search.compared(results).to_dict("records")
    assert row["trial"] == "search_k4"
    assert row["change"] == pytest.approx(math.expm1(0.15))
    assert row["documents"] == pytest.approx([math.expm1(0.05), math.expm1(0.25)])
    (axis,) = search.draw(results).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["k4"]


def test_steps_of_decoding_stand_beside_full_attention(results):
    assert decode.draw(results) is None
    full = {"K": None, "k": None, "probe": None, "routers": None, "extra_keys": None,
            "speedup": 1.0, "bound": 1.0}  # fmt: skip
    write_decode(
        results.root, full | {"method": "full"}, full | {"method": "full_copy", "speedup": 0.5},
        *({"context": t, "speedup": s} for t, s in ((2048, 1.5), (8192, 3.0))),
        {"k": 2, "probe": "multi_probe", "routers": "query_head", "extra_keys": 4},
        {"dtype": "bfloat16"},
    )  # fmt: skip
    del results.__dict__["decode"]
    figure = decode.draw(results)
    assert [axis.get_title("left") for axis in figure.axes] == ["cpu, float32", "cpu, bfloat16"]
    labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert labels == {
        "K = 8, 1 group a token, a router a layer",
        "K = 8, 2 groups a query, 1 a key, a router a query head, 4 further keys",
        "full attention", "full attention, cache copied at every step",
    }  # fmt: skip
    assert len(tables.decode(results)) == 6


def test_the_whole_model_has_a_panel_for_a_pass_and_one_for_generation(results):
    assert whole.draw(results) is None
    write_whole(results.root, "prefill", {}, {"length": 64, "speedup": 0.9, "bound": 1.0})
    del results.__dict__["whole"]
    (alone,) = whole.draw(results).axes
    assert alone.get_title("left") == "A forward pass (cpu, float32)"
    assert list(alone.containers[0].lines[0].get_ydata()) == [0.9, 2.0]
    write_whole(results.root, "continuation", {"length": 512})
    del results.__dict__["whole"]
    figure = whole.draw(results)
    titles = [axis.get_title("left").split(" (")[0] for axis in figure.axes]
    assert titles == ["A forward pass", "Generation after a context"]
    labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert labels == {"recipe", "bound", "pretrained"}
    found = tables.whole(results)
    assert list(found["phase"]) == ["forward", "forward", "generation"]
    assert "evidence" not in found


def test_answers_stand_in_a_table_without_their_text(results):
    write_generation(results.root, {}, {"question": 1})
    write_generation(results.root, {"variant": "prose-symmetric-k1"}, trial="prose")
    tables.write(results, results.root / "tables")
    frame = pd.read_csv(results.root / "tables" / "generation.csv")
    assert list(frame["variant"]) == ["recipe", "recipe", "prose-symmetric-k1"]
    assert list(frame["question"]) == [0, 1, 0]
    assert not {"text_full", "text_hard", "evidence"} & set(frame)


def test_a_trial_looks_the_same_in_every_panel(results):
    """Though one panel has it alone and another beside a second trial."""
    pretrained_row = {"kind": "pretrained", "reading": "pretrained", "delta": 0.0}
    for corpus, trial in (("pg19", "default"), ("pg19", "prose"), ("wikitext-2", "prose")):
        write_transfer(results.root, corpus, pretrained_row, {"trial": trial}, trial=trial)
    trials = {"prose": {"retrofit": {"texts": "mixture"}}}
    notes = {"trained_on": ["plays", "pg19"]}
    for cell in ("prose-pg19", "prose-wikitext-2"):
        text = json.dumps({"notes": notes, "settings": {"recipe": {"trials": trials}}})
        (results.root / "transfer" / cell / "run.json").write_text(text)
    first, second = transfer.draw(results).axes
    looks = [
        {line.get_label(): line.lines[0].get_color() for line in axis.containers}
        for axis in (first, second)
    ]
    assert looks[1].items() <= looks[0].items()
    assert set(looks[0]) == {
        "default (K = 16, 3 seeds)", "prose (saw plays + pg19, K = 16, 3 seeds)"
    }  # fmt: skip


def test_a_trial_far_from_the_rest_is_told_in_words(results):
    far = {"trial": "paper", "delta": 1.2, "delta_low": 1.1, "delta_high": 1.3}
    write_transfer(results.root, "pg19", {"trial": "prose"}, trial="prose")
    write_transfer(results.root, "pg19", far, {**far, "delta": 0.9}, trial="paper")
    (axis,) = transfer.draw(results).axes
    assert [line.get_label() for line in axis.containers] == ["prose (K = 16, 3 seeds)"]
    assert [text.get_text() for text in axis.texts] == ["off the scale: paper, 1.90 to 2.20"]
    assert axis.get_ylim()[1] < 1.2


def test_a_trial_far_from_the_line_is_drawn_where_it_is_alone(results):
    write_transfer(results.root, "pg19", {"trial": "paper", "delta": 1.2}, trial="paper")
    (axis,) = transfer.draw(results).axes
    assert len(axis.containers) == 1
    assert axis.texts[0].get_text() == ""


def test_lines_of_many_look_apart():
    assert len({tuple(style.nth(n).values()) for n in range(40)}) == 40


def test_figures_are_drawn_and_not_empty(filled):
    paths = figures.write(filled, filled.root / "figures")
    names = {path.name for path in paths}
    assert names == {f"{n}.{s}" for n in ("topk", "speed", "leak") for s in ("png", "svg")}
    for path in paths:
        assert path.stat().st_size > 5000
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")
    assert "the paper" in figures.CAPTIONS["topk"]


def test_equal_results_give_equal_files(filled):
    one, two = (
        {path.name: path.read_bytes() for path in figures.write(filled, filled.root / name)}
        for name in ("a", "b")
    )
    assert one == two


def test_a_figure_does_not_outlive_its_results(filled):
    folder = filled.root / "figures"
    figures.write(filled, folder)
    figures.write(type(filled)(filled.root / "nowhere"), folder)
    assert list(folder.iterdir()) == []


def test_the_command_writes_everything_below_its_folder(filled):
    (filled.root / "topk" / "k4_sinks0" / "metrics.json").write_text('{"hard.k2.ppl": 40.0}')
    command.main(["--results", str(filled.root)])
    metrics = json.loads((filled.root / "metrics.json").read_text())
    assert metrics["topk.k4_sinks0.hard.k2.ppl"] == 40.0
    assert sum(v for k, v in metrics.items() if k.startswith("claims.")) == len(
        json.loads((filled.root / "claims.json").read_text())
    )
    page = (filled.root / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 3
    assert "http" not in page.replace("http-equiv", "")
    assert "{{" not in page
    assert 'id="table7.' not in page
    assert page.count("<tr data-verdict=") == 376


def test_without_any_result_the_command_still_says_what_is_missing(tmp_path, capsys):
    command.main(["--results", str(tmp_path / "new")])
    assert "not run" in capsys.readouterr().out
    page = (tmp_path / "new" / "report.html").read_text()
    assert "Nothing has been measured yet" not in page  # what is counted is measured
    assert page.count("no result files yet") == len(figures.FIGURES)


def test_a_broken_file_is_named(results):
    (results.root / "leak").mkdir()
    (results.root / "leak" / "metrics.json").write_text("{")
    with pytest.raises(ValueError, match=r"leak.metrics\.json: not valid JSON"):
        tables.write(results, results.root / "tables")


def test_text_on_the_page_is_escaped(filled):
    from analysis.report import esc

    assert esc("<b>&") == "&lt;b&gt;&amp;"
    assert esc(float("nan")) == esc(None) == ""


@pytest.mark.parametrize(
    ("tokens", "text"), [(256, "256"), (1024, "1K"), (2**20, "1M"), (1500, "1500")]
)
def test_lengths_are_short(tokens, text):
    assert style.short(tokens) == text
