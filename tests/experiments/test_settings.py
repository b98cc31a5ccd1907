from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from experiments import settings
from experiments.recipe_settings import Reading
from focus.config import FocusConfig


def put(values: dict, name: str, value: object) -> None:
    """Sets the setting of a full name, e.g. `retrofit.steps`."""
    *path, last = name.split(".")
    for part in path:
        values = values[part]
    values[last] = value


def test_the_file_of_the_repository_is_valid(params):
    read = settings.parse(params)
    assert read.scale in settings.SCALES
    for name in read.variants:
        config, training = read.variant(name)
        assert isinstance(config, FocusConfig)
        assert training.steps >= 1


BAD = [
    ("scale", "moon", "scale: must be one of"),
    ("seed", -1, "seed: must be >= 0, got -1"),
    ("seed", True, "seed: must be a whole number"),
    ("seed", None, "seed: must be a whole number"),
    ("threads", 0, "threads: must be >= 1"),
    ("model.dtype", "int8", "model.dtype: must be one of auto, float32"),
    ("model.name", 3, "model.name: must be a text, got 3"),
    ("corpus.test_every", 1, "corpus.test_every: must be >= 2"),
    ("corpus.max_overlap", 0.0, "corpus.max_overlap: must be above 0"),
    ("corpus.max_documents", 0, "corpus.max_documents: must be >= 1"),
    ("protocol.context", 1, "protocol.context: must be >= 2"),
    ("protocol.context", "long", "protocol.context: must be a whole number, got 'long'"),
    ("protocol.stride", 0, "protocol.stride: must be >= 1"),
    ("protocol.score_from", 99999, "protocol.score_from: must be below context"),
    ("protocol.documents", 1, "protocol.documents: must be >= 2"),
    ("protocol.windows_per_document", 0, "protocol.windows_per_document: must be >= 1"),
    ("protocol.windows_per_document", 10**6, "protocol.windows_per_document: 1000000 windows need"),
    ("bootstrap.confidence", 1.0, "bootstrap.confidence: must be at least 0.5 and below 1"),
    ("bootstrap.samples", 3, "bootstrap.samples: must be >= 100"),
    ("retrofit.steps", 0, "retrofit.steps: must be >= 1"),
    ("retrofit.steps", 1.5, "retrofit.steps: must be a whole number, got 1.5"),
    ("retrofit.learning_rate", 0, "retrofit.learning_rate: must be > 0"),
    ("retrofit.learning_rate", float("nan"), "retrofit.learning_rate: must be finite"),
    ("retrofit.gradient_clip", -1.0, "retrofit.gradient_clip: must be > 0"),
    ("retrofit.warmup_steps", -1, "retrofit.warmup_steps: must be >= 0"),
    ("retrofit.checkpoint_every", 0, "retrofit.checkpoint_every: must be >= 1"),
    ("retrofit.step", 3, "retrofit.step: unknown setting; did you mean steps?"),
    ("topk.ks", [], "topk.ks: must name at least one"),
    ("topk.ks", [0], "topk.ks: every k must be >= 1"),
    ("topk.ks", [2, 2], "topk.ks: names a value twice"),
    ("topk.ks", [1, 99], "topk.ks: 99 is above num_groups = "),
    ("topk.ks", 2, "topk.ks: must be a list, got 2"),
    ("topk.ks", ["two"], "topk.ks[0]: must be a whole number"),
    ("topk.balances", ["luck"], "topk.balances: must be of"),
    ("topk.probes", ["luck"], "topk.probes: must be of"),
    ("leak.documents", 1, "leak.documents: must be >= 2"),
    ("leak.variants", ["other"], "leak.variants: 'other' is no variant"),
    ("leak.balances", ["lagged"], "leak.balances[0]: must be one of softmax, sinkhorn, causal"),
    ("leak.trials", ["other"], "leak.trials: 'other' is no trial of recipe.trials; there are"),
    ("generation.readings", ["k1"], "generation.readings: 'k1' is no reading of recipe.readings"),
    (
        "recipe.trials.annealed.num_groups",
        4,
        "leak.readings: multi_probe.k4.n3 masks nothing with num_groups = 4 of recipe.trials",
    ),
    ("prefill.lengths", [], "prefill.lengths: must name at least one"),
    ("prefill.lengths", [0], "prefill.lengths: must be >= 1"),
    ("prefill.most_repetitions", 1, "prefill.most_repetitions: must be >= 2"),
    ("continuation.contexts", [64, 64], "continuation.contexts: must name at least one"),
    ("continuation.new_tokens", 0, "continuation.new_tokens: must be >= 1"),
    ("continuation.seconds", 0, "continuation.seconds: must be > 0"),
    ("continuation.dtype", "int8", "continuation.dtype: must be one of"),
    ("tolerances.rounding", "small", "tolerances.rounding: must be a number"),
    ("tolerances.rounding", -1.0, "tolerances.rounding: must be >= 0"),
    ("speed", 3, "speed: must be a mapping, got 3"),
    ("protocols", {}, "protocols: unknown setting; did you mean protocol?"),
    ("variants", {}, "variants: must be a mapping with at least one"),
    ("variants.k4_sinks4", None, "variants.k4_sinks4: must be a mapping"),
    ("variants.a b", {}, "variants.a b: a variant's name"),
    ("variants.k4_sinks4.num_groups", 0, "variants.k4_sinks4.num_groups: must be >= 1, got 0"),
    ("variants.k4_sinks4.window", -1, "variants.k4_sinks4.window: must be >= 1, got -1"),
    ("variants.k4_sinks4.gate", "iron", "variants.k4_sinks4.gate: must be one of"),
    ("variants.k4_sinks4.top_k", 5, "variants.k4_sinks4.top_k: must be at most"),
    ("variants.k4_sinks4.widow", 5, "variants.k4_sinks4.widow: unknown setting; did you mean win"),
    ("variants.k4_sinks4.retrofit", {"steps": 0}, "variants.k4_sinks4.retrofit.steps: must be >="),
    ("variants.k4_sinks4.retrofit", {"step": 1}, "variants.k4_sinks4.retrofit.step: unknown"),
    ("copying.trials", ["moon"], "copying.trials: 'moon' is no trial of recipe.trials"),
    ("copying.passage", 8, "copying.passage: must be above lead = 8 and below context"),
    ("copying.distances", [], "copying.distances: must name at least one"),
    ("copying.distances", [100], "copying.distances: must be at least passage = 256 and at most"),
    ("copying.context", 4000, "copying.context: with copying.passage it needs 4256 tokens"),
    ("transfer.context", 4096, "transfer.context: 4096 is above mixture.piece = 2048"),
    ("retrofit.copies", 1.5, "retrofit.copies: must be between 0 and 1"),
    ("retrofit.hard_from", 1.5, "retrofit.hard_from: must be between 0 and 1"),
    ("retrofit.hard_top_ks", [], "retrofit.hard_top_ks: must name numbers >= 1"),
    (
        "recipe.trials.broad.retrofit",
        {"steps": 2, "hard_from": 0.5, "hard_top_ks": [99]},
        "recipe.trials.broad.retrofit.hard_top_ks: 99 is above num_groups",
    ),
    ("retrofit.texts", "mixture", "variants.paper.retrofit.texts: 'mixture' is for trials of"),
    ("mixture.sources", [], "mixture.sources: must name at least one"),
    ("mixture.piece", 1, "mixture.piece: must be >= 2"),
    ("mixture.piece", 512, "recipe.trials.broad.retrofit.context: 1024 is above mixture.piece"),
    ("mixture.tokens", 1000, "mixture.tokens: must be >= 2048"),
    ("retrofit.loss", "luck", "retrofit.loss: must be one of next_token, distil"),
    ("retrofit.temperature_start", 0.0, "retrofit.temperature_start: must be > 0"),
    ("recipe", 3, "recipe: must be a mapping, got 3"),
    ("recipe.trial", {}, "recipe.trial: unknown setting; did you mean trials?"),
    ("recipe.trials", {}, "recipe.trials: must be a mapping with at least one"),
    ("recipe.trials.a b", {}, "recipe.trials.a b: a trial's name"),
    ("recipe.trials.default", 1, "recipe.trials.default: must be a mapping, got 1"),
    ("recipe.trials.default.gate", "iron", "recipe.trials.default.gate: must be one of"),
    ("recipe.trials.default.seeds", [], "recipe.trials.default.seeds: must name at least one"),
    ("recipe.trials.default.seeds", [0, 0], "recipe.trials.default.seeds: must name at least"),
    ("recipe.trials.default.seeds", ["a"], "recipe.trials.default.seeds: must be a list of whole"),
    ("recipe.trials.default.controls", 1, "recipe.trials.default.controls: must be true or"),
    ("recipe.trials.default.final", 1, "recipe.trials.default.final: must be true or false"),
    ("recipe.trials.default.retrofit", {"step": 1}, "recipe.trials.default.retrofit.step: unkn"),
    ("recipe.base.windo", 3, "recipe.base.windo: unknown setting; did you mean window?"),
    ("recipe.readings", [], "recipe.readings: must name at least one"),
    ("recipe.readings", [{"top_k": 0}], "recipe.readings[0].top_k: must be >= 1, got 0"),
    ("recipe.readings", [{"top_k": 99}], "recipe.readings: top_k = 99 is above num_groups = 16"),
    ("recipe.controls", ["luck"], "recipe.controls[0]: must be one of random, position"),
    ("recipe.calibration", 0, "recipe.calibration: must be >= 1"),
    ("recipe.protocol.documents", 1, "recipe.protocol.documents: must be >= 2"),
    ("recipe.protocol.windows_per_document", 10**6, "recipe.protocol.windows_per_document: 1000"),
    ("variants.k4_sinks4.retrofit", {"context": 10**6}, "variants.k4_sinks4.retrofit.context: "),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD, ids=[f"{n}={v}" for n, v, _ in BAD])
def test_nonsense_is_refused_with_the_full_name_of_the_field(params, name, value, message):
    put(params, name, value)
    with pytest.raises(ValueError) as caught:
        settings.parse(params)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "block", ["model", "retrofit", "topk", "variants", "fetch", "speed", "tolerances", "recipe"]
)
def test_a_missing_block_is_named(params, block):
    del params[block]
    with pytest.raises(ValueError, match=f"^{block}: is missing"):
        settings.parse(params)


def test_a_missing_field_is_named(params):
    del params["protocol"]["context"]
    with pytest.raises(ValueError, match=r"^protocol\.context: is missing"):
        settings.parse(params)


def test_a_variant_overrides_the_common_training(params):
    common = params["retrofit"]["learning_rate"]
    params["variants"]["k4_sinks4"]["retrofit"] = {"steps": 7}
    _, training = settings.parse(params).variant("k4_sinks4")
    assert (training.steps, training.learning_rate) == (7, common)


def test_an_unknown_variant_is_refused(params):
    with pytest.raises(ValueError, match=r"^variants\.none: no such variant; there are paper"):
        settings.parse(params).variant("none")


def test_free_blocks_are_read_only_and_name_what_is_missing(params):
    params["analysis"] = {"lengths": [1, 2], "deep": {"x": 1}}
    read = settings.parse(params)
    assert read.analysis.lengths == (1, 2)
    assert read.analysis["deep"].x == 1
    assert read.analysis.plain() == params["analysis"]
    with pytest.raises(AttributeError, match=r"analysis\.heads: is missing"):
        _ = read.analysis.heads
    with pytest.raises(TypeError):
        read.analysis["lengths"] = ()


def test_plain_is_a_valid_params_file_again(params):
    read = settings.parse(params)
    assert settings.parse(read.plain()) == read


def test_settings_cannot_be_changed(params):
    read = settings.parse(params)
    with pytest.raises(AttributeError):
        read.seed = 3
    with pytest.raises(TypeError):
        read.variants["new"] = None


@pytest.mark.parametrize("text", ["", "- 1\n", "a: [", "3"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path, text):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"params\.yaml: "):
        settings.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="no such file; run from the repository's root"):
        settings.load(tmp_path / "params.yaml")


def test_the_command_tells_the_field_and_fails(tmp_path, monkeypatch, capsys, params):
    params["variants"]["k4_sinks4"]["window"] = -1
    with Path(tmp_path / "params.yaml").open("w") as file:
        YAML().dump(params, file)
    monkeypatch.chdir(tmp_path)
    assert settings.main() == 1
    assert "params.yaml: variants.k4_sinks4.window: must be >= 1" in capsys.readouterr().err


def test_a_number_in_scientific_notation_is_a_number(tmp_path):
    path = tmp_path / "numbers.yaml"
    path.write_text("rate: 1e-2\n")
    assert settings.read_yaml(path) == {"rate": 0.01}


def test_a_reading_with_ngrams_has_a_name_of_its_own() -> None:
    plain, matched = Reading(1), Reading(1, ngram=3)
    assert (plain.name, matched.name) == ("symmetric.k1", "symmetric.k1.n3")
    assert matched.share(10) == plain.share(10)
    with pytest.raises(ValueError, match="ngram_keys: must be >= 1"):
        Reading(1, ngram=3, ngram_keys=0)


def test_random_groups_keep_no_fewer_pairs_than_asked() -> None:
    one, several = Reading(1), Reading(2, "multi_probe")
    assert one.share(16) == pytest.approx(1 / 16)
    assert several.share(16) == pytest.approx(2 / 16)
    assert Reading(2).share(16) == pytest.approx(1 - (14 * 13) / (16 * 15))
    assert one.groups_for(0.064, 18) == 15
    assert one.groups_for(0.066, 18) == 14  # 3% more than asked
    assert one.groups_for(0.05, 18) == 18
    assert several.groups_for(1.0, 18) == 3
