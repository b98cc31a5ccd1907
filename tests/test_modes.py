"""Modes: what holds in a thread, and for how long."""

import contextvars
import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import focus
from focus import FocusConfig
from tests.models import logits, tiny, token_ids
from tests.stepping import CONFIG


def test_a_training_step_in_evaluation_mode_is_told() -> None:
    model, ids = focus.attach(tiny("tiny-llama").eval(), CONFIG, seed=0), token_ids(1, 60)
    with focus.mode(model, "soft"):
        with pytest.warns(UserWarning, match=r"call model.train\(\)"):
            model(ids)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("error")
            model(ids)
        model.train()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(ids)


def test_mode_is_restored_also_after_an_error() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)

    def now() -> tuple[str, FocusConfig]:
        own, config = model.focus_state.runs(model)
        return own.name, config

    with pytest.raises(KeyError), focus.mode(model, "soft", balance="sinkhorn", top_k=2):
        raise KeyError
    assert now() == ("hard", CONFIG)
    with focus.mode(model, "full"), focus.mode(model, "soft", top_k=2):
        with focus.mode(model, "hard", window=4):  # the innermost holds, and takes nothing over
            assert now() == ("hard", CONFIG.replace(window=4))
        assert now() == ("soft", CONFIG.replace(top_k=2))
    allocated = CONFIG.replace(probe="multi_probe", allocated=True)
    other = focus.attach(tiny("tiny-llama"), allocated, seed=0)
    with focus.mode(other, "hard", probe="symmetric", top_k=1):
        focus.mode(other, "hard", top_k=4).unused = False  # which symmetric keys could not have
    with focus.mode(model, "hard", backend="dense", tap=print), focus.mode(model, "hard"):
        own = model.focus_state.mode
        assert (own.backend, own.tap) == ("auto", None)
    assert model.config._attn_implementation == "focus"


def test_a_mode_that_is_not_entered_is_told() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    with pytest.warns(UserWarning, match="write `with"):
        focus.mode(model, "full")
    assert model.focus_state.mode.name == "hard"


def test_what_belongs_to_the_routers_is_no_matter_of_the_mode() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    for change in ({"num_groups": 8}, {"routing_dim": 4}, {"routers": "key_head"}):
        with pytest.raises(ValueError, match="belongs to the routers"):
            focus.mode(model, "hard", **change)


@pytest.mark.parametrize("change", [{}, {"balance": "softmax"}, {"routers": "query_head"}])
def test_hard_mode_is_causal_while_training_too(change: dict) -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG.replace(**change), seed=0).train()
    ids = token_ids(1, 90)
    other = torch.cat([ids[:, :50], token_ids(1, 40, seed=5)], 1)
    with focus.mode(model, "hard", backend="dense"):
        assert torch.equal(logits(model, ids)[:, :50], logits(model, other)[:, :50])


def test_potentials_mean_the_same_at_every_temperature() -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(1, 90)
    for router in model.focus_state.routers.values():
        router.potentials.normal_(generator=torch.Generator().manual_seed(1)).mul_(0.1)
    logits(model, ids)
    before = focus.memberships(model)
    with focus.mode(model, "hard", temperature=0.7):
        logits(model, ids)
    for index, found in focus.memberships(model).items():
        assert torch.equal(found.query, before[index].query)


def test_frozen_routers_in_soft_mode_are_told() -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0).train(), token_ids(1, 60)
    model.requires_grad_(False)
    model.lm_head.weight.requires_grad_()
    with focus.mode(model, "soft"), pytest.raises(ValueError, match="trainable_parameters"):
        model(ids)
    assert all(p.requires_grad for p in focus.trainable_parameters(model))
    with focus.mode(model, "soft"):
        model(ids)


def test_a_mode_may_be_left_in_another_context_than_it_was_entered_in() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)

    def steps() -> Iterator[str]:
        with focus.mode(model, "full"):
            yield model.focus_state.mode.name

    generator = steps()
    assert contextvars.copy_context().run(next, generator) == "full"
    assert next(generator, "over") == "over"
    assert model.focus_state.mode.name == "hard"


def test_modes_that_overlap_are_left_one_by_one() -> None:
    """Two generators, of which the one that began first ends first."""
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)

    def stream(name: str) -> Iterator[None]:
        with focus.mode(model, name):
            yield

    one, other = stream("soft"), stream("full")
    next(one)
    next(other)
    one.close()
    assert model.focus_state.mode.name == "full"
    other.close()
    assert model.focus_state.mode.name == "hard"
    assert not model.focus_state.entered


def test_one_object_may_be_entered_in_two_threads() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    shared, both = focus.mode(model, "soft"), threading.Barrier(2)

    def enter(_: int) -> tuple[str, bool]:
        with shared:
            both.wait()
        both.wait()
        return model.focus_state.mode.name, model.focus_state.entered

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(enter, range(2))) == [("hard", False)] * 2


def test_a_call_that_python_refuses_says_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ignored = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), []
    monkeypatch.setattr("sys.unraisablehook", ignored.append)
    with pytest.raises(TypeError, match="name"):
        focus.mode(model)
    gc.collect()
    assert not ignored


def test_a_thread_beside_a_mode_is_told_once_that_it_runs_in_none() -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(1, 60)
    hard = logits(model, ids)

    def elsewhere(run: Callable[[], torch.Tensor]) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(run).result()

    def own() -> torch.Tensor:
        with focus.mode(model, "hard"):
            return logits(model, ids)

    with focus.mode(model, "full"):
        full = logits(model, ids)
        inherits = contextvars.copy_context()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(elsewhere(lambda: inherits.run(logits, model, ids)), full)
            assert torch.equal(elsewhere(own), hard)
        with pytest.warns(UserWarning, match="another thread has entered.*copy_context"):
            assert torch.equal(elsewhere(lambda: logits(model, ids)), hard)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            elsewhere(lambda: logits(model, ids))
    assert model.focus_state.threads == []


def test_a_replica_of_data_parallel_is_refused() -> None:
    model = focus.attach(tiny("tiny-llama").eval(), CONFIG, seed=0)
    model.model._is_replica = True  # as torch.nn.DataParallel marks its copies
    with pytest.raises(ValueError, match=r"^DataParallel: .*use DistributedDataParallel"):
        logits(model, token_ids(1, 60))


def test_a_mode_that_another_thread_has_left_is_not_told_of() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    entered = focus.mode(model, "full")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(entered.__enter__).result()
    entered.__exit__(None, None, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="the routers are as focus.attach made them")
        logits(model, token_ids(1, 60))


def test_a_modes_temperature_is_that_of_sinkhorn_under_the_hard_mask() -> None:
    cold, warm = (focus.attach(tiny("tiny-llama"), CONFIG.replace(temperature=t), seed=0)
                  for t in (0.1, 2.0))  # fmt: skip
    ids, found = token_ids(1, 60), []
    for model, temperature in ((cold, 0.1), (cold, 2.0), (warm, 2.0)):
        with focus.mode(model, "hard", balance="sinkhorn", temperature=temperature):
            found.append(logits(model, ids))
    assert torch.equal(found[1], found[2])
    assert not torch.equal(found[0], found[1])
