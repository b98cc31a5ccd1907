"""The recipe stage on a tiny model: search on validation books, finalists beside controls."""

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

import focus
from experiments import gsm8k, settings
from experiments.lit import cooled, distillation_loss, gate_at
from experiments.recipe_settings import ORACLES, Reading
from experiments.schema import read_yaml
from experiments.settings import RetrofitSettings
from experiments.stages.retrofit import train
from experiments.stages.transfer import fingerprint
from experiments.trained import of_trial, routed_so, trained_so
from tests.experiments.test_retrofit import ROOT, run, start, workspace
from tests.models import tiny, token_ids

CONTROLS = ("random", "position", "token", "window")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workspace(tmp_path_factory.mktemp("recipe"), read_yaml(ROOT / "params.yaml"))


def test_finalists_average_seeds_and_stand_beside_controls(folder: Path) -> None:
    for seed in ("0", "1"):
        run(folder, "recipe", "--cell", "finalist", "--seed", seed)
    assert not (folder / "results/recipe/finalist").exists()
    done = folder / "data/adapters/recipe/finalist/seed1/adapter_model.safetensors"
    made = done.stat().st_mtime_ns
    shutil.rmtree(folder / "data/adapters/recipe/finalist/seed0")
    run(folder, "recipe", "--cell", "finalist")
    assert done.stat().st_mtime_ns == made  # taken up, not trained again
    assert (folder / "data/adapters/recipe/finalist/seed0/adapter_config.json").is_file()  # wanted
    table = pd.read_csv(folder / "results/recipe/finalist/table.csv").set_index("kind")
    matched = table[table["reading"] == "symmetric.k1.n2"]
    assert list(matched.index) == ["routed", *CONTROLS]  # further keys change no oracle
    assert list(matched["ngram"]) == [2] * 5  # the same further keys
    table = table[table["reading"] != "symmetric.k1.n2"]
    assert matched.loc["routed", "distant_density"] > table.loc["routed", "distant_density"]
    assert list(table.index) == ["pretrained", "routed", *CONTROLS, *ORACLES]
    assert list(table["seeds"]) == [2, 2, 1, 1, 1, 1, 1, 1]
    routed = table.loc["routed"]
    assert routed["delta_least"] < routed["delta_most"]
    assert routed["delta_low"] <= routed["delta"] <= routed["delta_high"]
    assert table.loc["pretrained", ["delta", "density"]].tolist() == [0.0, 1.0]
    window = table.loc["window"]
    assert window["window"] > 8
    assert 0 <= window["distant_density"] - routed["distant_density"] < 0.06
    own, heads = table.loc["oracle"], table.loc["oracle_heads"]  # as many as the first seed's
    assert own["distant_density"] == heads["distant_density"]
    assert own["ppl"] != heads["ppl"]
    for kind in ("position", "token"):
        assert 0 <= table.loc[kind, "distant_density"] - own["distant_density"] < 0.2
    documents = pd.read_csv(folder / "results/recipe/finalist/documents.csv")
    assert len(documents) == 3 * (2 * 3 + 2 * 4 + 2)
    assert (folder / "data/adapters/recipe/finalist/seed1/adapter_model.safetensors").is_file()
    assert not (folder / "checkpoints/recipe/finalist").exists()


def test_routers_are_scored_again_without_training(folder: Path) -> None:
    """After the finalist's training."""
    process = start(folder, "recipe", "--cell", "searched", "--score")
    assert process.wait(timeout=60) != 0
    assert (
        "seed0: has no routers that were trained as params.yaml says"
        in (folder / "log").read_text()
    )
    results, routers = folder / "results/recipe/finalist", folder / "data/adapters/recipe/finalist"
    before = {name: (results / name).read_bytes() for name in ("table.csv", "train.csv")}
    made = [path.stat().st_mtime_ns for path in sorted(routers.rglob("*.*"))]
    run(folder, "recipe", "--cell", "finalist", "--score")
    assert {name: (results / name).read_bytes() for name in before} == before
    assert [path.stat().st_mtime_ns for path in sorted(routers.rglob("*.*"))] == made
    notes = json.loads((results / "run.json").read_text())["notes"]
    assert notes["trained"] == "in an earlier run"


def test_routers_are_read_on_texts_that_they_were_not_trained_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the finalist's training; documents that are too short are passed over."""
    own = folder / "texts" / "letters"
    monkeypatch.setenv("FOCUS_DATA", str(own.parent))
    for name, words in (("long", 60), ("longer", 90), ("short", 3)):
        (own / "test").mkdir(parents=True, exist_ok=True)
        (own / "test" / f"{name}.txt").write_text(" ".join(f"{name}{n}" for n in range(words)))
    (own / "train").mkdir()
    (own / "train" / "seen.txt").write_text(" ".join(f"seen{n}" for n in range(90)))
    run(folder, "fetch", "letters")
    run(folder, "transfer", "--cell", "letters", "--seed", "1")
    assert not (folder / "results/transfer/finalist-letters").exists()
    run(folder, "transfer", "--cell", "letters")
    table = pd.read_csv(folder / "results/transfer/finalist-letters/table.csv")
    table = table[table["ngram"] == 0].drop_duplicates("kind")
    assert list(table["kind"]) == ["pretrained", "routed", *CONTROLS, *ORACLES]
    assert list(table["seeds"]) == [2, 2, 1, 1, 1, 1, 1, 1]
    documents = pd.read_csv(folder / "results/transfer/finalist-letters/documents.csv")
    assert set(documents["document"]) == {"long", "longer"}
    assert not (folder / "checkpoints/transfer/finalist/letters").exists()
    run(folder, "transfer", "--cell", "letters", "--first-window", "1")
    further = pd.read_csv(folder / "results/transfer/finalist-letters-from1/documents.csv")
    assert set(further["document"]) == {"long", "longer"}
    assert not set(further["nll"]) & set(documents["nll"])


def test_transfer_says_what_lacks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOCUS_DATA", raising=False)
    process = start(folder, "transfer", "--cell", "nowhere")
    assert process.wait(timeout=60) != 0
    assert "transfer: nowhere: no such source" in (folder / "log").read_text()
    process = start(folder, "transfer", "--cell", "letters", "--trial", "nobody")
    assert process.wait(timeout=60) != 0
    assert "recipe.trials.nobody: no such trial; there are" in (folder / "log").read_text()
    (folder / "data/adapters/recipe/finalist/seed1").rename(folder / "data/away")
    process = start(folder, "transfer", "--cell", "nowhere")
    assert process.wait(timeout=60) != 0
    assert "is missing: run `dvc repro recipe@finalist` first" in (folder / "log").read_text()
    (folder / "data/away").rename(folder / "data/adapters/recipe/finalist/seed1")
    told = folder / "data/adapters/recipe/finalist/seed1/training.json"
    before = told.read_text()
    told.write_text(before.replace('"steps": ', '"steps": 1'))
    process = start(folder, "transfer", "--cell", "nowhere")
    assert process.wait(timeout=60) != 0
    assert "seed1: its routers were not trained as params.yaml and" in (folder / "log").read_text()
    told.write_text(before)


def test_a_setting_younger_than_the_routers_had_its_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    trial = settings.load().recipe.trials["finalist"]
    own = folder / "data/adapters/recipe/finalist/seed1"
    told = own / "training.json"
    before = json.loads(told.read_text())
    for left_out, same in (("copies", True), ("steps", False)):  # of steps the trial has its own
        values = {name: each for name, each in before["retrofit"].items() if name != left_out}
        told.write_text(json.dumps({**before, "retrofit": values}))
        assert trained_so(own, trial) is same
    younger = {name: each for name, each in before.items() if name != "gate"}
    for values, same in ((younger, True), (before | {"gate": {"probes": 2}}, False)):
        told.write_text(json.dumps(values))
        assert trained_so(own, trial) is same
    told.write_text(json.dumps(before))


def test_routers_that_route_otherwise_are_not_the_trials(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many groups a query takes."""
    monkeypatch.chdir(folder)
    trial = settings.load().recipe.trials["finalist"]
    own = folder / "data/adapters/recipe/finalist/seed1"
    assert routed_so(own, trial)
    assert routed_so(own, replace(trial, focus=trial.focus.replace(top_k=2, ngram=3)))
    assert not routed_so(own, replace(trial, focus=trial.focus.replace(window=9)))
    assert not routed_so(folder, trial)  # there are none


def test_copied_passages_are_scored_with_every_seed_and_distance(folder: Path) -> None:
    run(folder, "copying", "--cell", "finalist", "--seed", "1")
    partial = json.loads((folder / "checkpoints/copying/finalist/seed1.json").read_text())
    masks = [row for part in partial["parts"].values() for row in part["rows"]]
    assert {each["tokens"] for row in masks for each in row["scores"]} == {12 - 2}  # of 64, the end
    assert not (folder / "results/copying/finalist").exists()
    run(folder, "copying", "--cell", "finalist")
    table = pd.read_csv(folder / "results/copying/finalist/table.csv").set_index("kind")
    assert list(table["ngram"]) == [0, 0, 2, 0, 2, 0]
    table = table[table["ngram"] == 0]
    assert list(table.index) == ["pretrained", "routed", "random", "new"]
    assert list(table["seeds"]) == [2, 2, 1, 2]
    assert table.loc["pretrained", ["copied", "above"]].tolist() == [1.0, 0.0]
    assert table.loc["new", "copied"] == 0.0
    apart = pd.read_csv(folder / "results/copying/finalist/distances.csv")
    assert list(apart["distance"]) == [20] * 6 + [44] * 6
    routed = apart[(apart["kind"] == "routed") & (apart["ngram"] == 0)]["nats"]
    assert routed.nunique() == 2
    assert table.loc["routed", "nats"] == pytest.approx(routed.mean())
    assert not (folder / "checkpoints/copying/finalist").exists()
    process = start(folder, "copying", "--cell", "finalist", "--seed", "7")
    assert process.wait(timeout=60) != 0
    assert "recipe.trials.finalist.seeds: 7 is not among them" in (folder / "log").read_text()
    process = start(folder, "copying", "--cell", "searched")
    assert process.wait(timeout=60) != 0
    assert "recipe.trials.searched.final: only finalists" in (folder / "log").read_text()


def test_a_trials_routers_leak_nothing_and_generate_with_the_cache(folder: Path) -> None:
    """The stages that measure variants, on a finalist's routers under the named masks."""
    run(folder, "leak", "--trial", "finalist")
    table = pd.read_csv(folder / "results/leak/finalist/table.csv")
    assert set(table["variant"]) == {"finalist-symmetric-k1-n2"}
    changed = table.groupby("balance")["changed"].max()
    assert changed["sinkhorn"] > changed["causal"] == 0
    path = folder / "data/sources/benchmarks" / gsm8k.FILE
    path.parent.mkdir(parents=True)
    row = {"request": {"context": "Two and two? " * 9}, "doc": {"short_answer": "4"}}
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"doc_id": n, **row}) + "\n" for n in range(2))
    run(folder, "generation", "--trial", "finalist")
    for name in ("table", "long"):
        made = pd.read_csv(folder / f"results/generation/finalist/{name}.csv")
        assert list(made["variant"].unique()) == ["finalist-symmetric-k1-n2"]
        assert (made[["cache_differs_hard", "cache_differs_full"]] == 0).all(axis=None)
    process = start(folder, "leak", "--trial", "searched")
    assert process.wait(timeout=60) != 0
    assert "recipe.trials.searched.final: only finalists are read" in (folder / "log").read_text()


def test_masks_of_a_trial_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    chosen = settings.load()
    trial = chosen.recipe.trials["finalist"]
    assert [each.mask["ngram"] for each in of_trial(trial, (), chosen)] == [0, 2]
    with pytest.raises(ValueError, match="absent/seed0 is missing: run `dvc repro recipe@absent`"):
        of_trial(replace(trial, name="absent"), (), chosen)
    (named,) = of_trial(trial, ("symmetric.k1.n2",), chosen)
    model, _ = named.load(chosen)
    with focus.mode(model, "hard", **named.mask):
        own = model.focus_state.settings.config
        assert (own.top_k, own.ngram, own.ngram_keys, own.balance) == (1, 2, 2, "causal")
    with pytest.raises(ValueError, match="finalist: none of the readings masks anything"):
        of_trial(trial, (), replace(chosen, recipe=replace(chosen.recipe, readings=(Reading(4),))))


def test_scores_of_other_settings_are_not_taken_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the texts are the same, byte for byte."""
    monkeypatch.chdir(folder)
    chosen = settings.load()
    trial, own = chosen.recipe.trials["finalist"], folder / "data/adapters/recipe/finalist/seed1"
    window = [("one", torch.arange(64).view(1, 64))]
    known = {
        fingerprint(trial, window, own, chosen, how)
        for how in (
            chosen.copying, replace(chosen.copying, lead=3), chosen.transfer,
            replace(chosen.transfer, context=32, windows_per_document=2),
        )
    }  # fmt: skip
    assert len(known) == 4


def test_a_search_is_scored_on_validation_books(folder: Path) -> None:
    run(folder, "recipe", "--cell", "searched")
    documents = pd.read_csv(folder / "results/recipe/searched/documents.csv")
    assert set(documents["document"]) == {"validation 0", "validation 1"}
    assert set(documents["kind"]) == {"pretrained", "routed"}


@pytest.mark.parametrize("loss", ["next_token", "distil"])
def test_a_trained_model_reads_causally(
    folder: Path, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    """Scores are taken of it as training leaves it."""
    monkeypatch.chdir(folder)
    model = tiny("tiny-llama")
    config = focus.FocusConfig(num_groups=4, window=8, sinks=2)
    training = RetrofitSettings(steps=3, context=64, warmup_steps=1, loss=loss)  # type: ignore[arg-type]
    place = folder / f"checkpoints/causal{loss}"
    train(model, config, training, 0, place, place / "live")
    one, other = token_ids(1, 96), token_ids(1, 96)
    other[:, 48:] = token_ids(1, 48, seed=5)
    with torch.no_grad():
        logits = [model(ids, use_cache=False).logits[:, :48] for ids in (one, other)]
    assert torch.allclose(*logits, atol=1e-5)
    assert not model.training


def test_an_unknown_trial_is_refused_by_name(folder: Path) -> None:
    process = start(folder, "recipe", "--cell", "missing")
    assert process.wait(timeout=60) != 0
    assert "recipe.trials.missing: no such trial; there are" in (folder / "log").read_text()
    process = start(folder, "recipe", "--cell", "finalist", "--seed", "7")
    assert process.wait(timeout=60) != 0
    assert "recipe.trials.finalist.seeds: 7 is not among (0, 1)" in (folder / "log").read_text()


def attached() -> torch.nn.Module:
    config = focus.FocusConfig(num_groups=4, window=8, temperature=0.1)
    return focus.attach(tiny("tiny-llama"), config, seed=0)


def test_distillation_is_zero_where_the_gate_is_open() -> None:
    model = attached()
    with torch.no_grad():
        assert distillation_loss(model, token_ids(1, 8)).abs() < 1e-6  # all within the window
        assert distillation_loss(model, token_ids(1, 64)) > 1e-6


def test_the_last_steps_run_under_the_hard_mask_with_each_k_in_turn() -> None:
    settings = RetrofitSettings(steps=8, hard_from=0.5, hard_top_ks=(1, 2))
    seen = [gate_at(step, settings, 0.1) for step in range(8)]
    assert seen[:4] == [{"temperature": 0.1}] * 4
    assert [how["top_k"] for how in seen[4:]] == [1, 2, 1, 2]
    assert {how["gate"] for how in seen[4:]} == {"straight_through"}
    assert gate_at(7, RetrofitSettings(steps=8), 0.1) == {"temperature": 0.1}
    cooling = RetrofitSettings(steps=8, hard_from=0.5, temperature_start=0.4)
    assert gate_at(4, cooling, 0.1)["temperature"] == cooled(4, cooling, 0.1)


def test_training_under_the_hard_mask_moves_routers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    config = focus.FocusConfig(num_groups=4, window=8, sinks=2, routers="query_head",
                               probe="multi_probe", top_k=2)  # fmt: skip
    losses = []
    for hard_from in (None, 0.5):
        training = RetrofitSettings(steps=4, context=64, warmup_steps=1, hard_from=hard_from,
                                    hard_top_ks=(1, 2))  # fmt: skip
        place = folder / f"checkpoints/hard{hard_from}"
        trained = train(tiny("tiny-llama"), config, training, 0, place, place / "live")
        losses.append(trained.module.losses)
    assert losses[0][:2] == losses[1][:2]
    assert losses[0][2] != losses[1][2]  # the loss is now the masked model's
    assert losses[0][3] != losses[1][3]


def test_the_temperature_goes_geometrically_to_the_variants_own() -> None:
    settings = RetrofitSettings(steps=5, temperature_start=0.4)
    seen = [cooled(step, settings, 0.1) for step in range(5)]
    assert seen == pytest.approx([0.4, 0.4 / 2**0.5, 0.2, 0.2 / 2**0.5, 0.1])
    assert cooled(2, RetrofitSettings(steps=5), 0.1) == 0.1
