from pathlib import Path

import pytest

from experiments import settings
from focus import FocusConfig

ROOT = Path(__file__).parents[1]


def test_paper_is_the_papers_way() -> None:
    config = FocusConfig.paper()
    assert (config.balance, config.gate, config.sinks) == ("sinkhorn", "eq2", 0)
    assert (config.routers, config.probe) == ("paper", "symmetric")
    assert FocusConfig.paper(num_groups=8, top_k=1).num_groups == 8


def test_the_recipe_is_the_experiment_that_was_measured() -> None:
    params = settings.load(ROOT / "params.yaml", overlays=ROOT / "scales")
    assert FocusConfig.recipe() == FocusConfig(**params.cell("recipe").method.fields)
    assert FocusConfig.recipe().key_top_k == 1
    assert FocusConfig.recipe(window=64).window == 64


def test_training_counts_follow_from_the_probe() -> None:
    recipe, plain = FocusConfig.recipe(), FocusConfig(top_k=2)
    assert (recipe.hard_keys, recipe.probes) == (True, 2)
    assert (plain.hard_keys, plain.probes) == (False, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_groups", 0), ("top_k", 0), ("top_k", 9), ("window", -1), ("window", 1.5),
        ("routing_dim", 0), ("temperature", 0.0), ("temperature", float("nan")),
        ("balance", "magic"), ("sinkhorn_iterations", 0), ("gate", "unknown"), ("sinks", -1),
        ("probe", "both"), ("routers", "head"), ("ngram", -1), ("ngram_keys", 0), ("ngram", 65),
        ("sinks", True),
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_the_fields_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{field}:"):
        FocusConfig(**{field: value})


def test_round_trip_and_unknown_fields() -> None:
    config = FocusConfig(num_groups=16, routers="key_head", probe="multi_probe", top_k=3)
    assert FocusConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ValueError, match=r"^groups: unknown field"):
        FocusConfig.from_dict({"groups": 4})


def test_replace_validates_again() -> None:
    with pytest.raises(ValueError, match=r"^top_k:"):
        FocusConfig(num_groups=4, top_k=4).replace(num_groups=2)


def test_a_misspelt_field_is_told_the_right_one() -> None:
    for build in (FocusConfig().replace, FocusConfig.recipe, FocusConfig.paper):
        with pytest.raises(ValueError, match=r"^topk: unknown field; did you mean top_k\?"):
            build(topk=2)


def test_a_config_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        FocusConfig().window = 3  # type: ignore[misc]


def test_keys_are_separate_only_where_they_can_differ() -> None:
    assert not FocusConfig(top_k=2).separate_keys
    assert not FocusConfig(top_k=1, probe="multi_probe").separate_keys
    assert FocusConfig(top_k=2, probe="multi_probe").separate_keys
    assert FocusConfig(routers="key_head").separate_keys
