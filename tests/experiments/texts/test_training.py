from __future__ import annotations

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from experiments import settings, texts
from experiments.texts import corpus
from experiments.texts.training import VALIDATION, TrainingData, share
from tests.experiments.texts.library import small


@pytest.fixture
def regime():
    """Fields of the regime that a test may change before the settings are parsed."""
    return {"name": "full", "steps": 4, "batch_size": 2, "context": 64}


@pytest.fixture
def data(params, regime, library):
    """Makes the data of an experiment with that regime."""

    def make(seed: int = 3, **changes) -> TrainingData:
        values = small(params, mine={"source": "mine", "test_every": 3, "validation_every": 4})
        values["experiments"]["tiny"]["regime"] = {**regime, **changes}
        chosen = settings.parse(values)
        corpus.build("mine", chosen)
        return TrainingData(chosen.cell("tiny"), seed, chosen)

    return make


def batches(module: TrainingData) -> list[torch.Tensor]:
    return [batch["input_ids"] for batch in module.train_dataloader()]


def test_there_are_as_many_batches_as_the_regime_takes(data):
    found = batches(data(accumulate=3))
    assert [tuple(batch.shape) for batch in found] == [(2, 64)] * 12
    assert all(batch.dtype == torch.int64 for batch in found)


def test_the_order_is_the_seeds(data):
    first, again, other = (torch.cat(batches(data(seed))) for seed in (3, 3, 4))
    assert first.equal(again)
    assert not first.equal(other)


def test_processes_share_every_batch_in_its_order():
    parts = [share(8, 4, rank, 2) for rank in range(2)]
    assert parts == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert share(6, 2, 0, 1) == list(range(6))


def test_the_course_is_read_on_validation_documents(data):
    module = data()
    found = [row["input_ids"] for row in module.val_dataloader()]
    wanted = texts.documents("mine", "validation", "tiny-llama", module.chosen)[:VALIDATION]
    assert len(found) == len(wanted) == 2
    for row, document in zip(found, wanted, strict=True):
        assert row.equal(document.tokens[None, :64])


class KilledError(Exception):
    pass


class Recorder(pl.LightningModule):
    """Notes the first tokens of each batch, and dies before a chosen step."""

    def __init__(self, die_at: int | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[list[int]] = []
        self.die_at = die_at

    def training_step(self, batch, index):
        if self.global_step == self.die_at:
            raise KilledError
        self.seen.append(batch["input_ids"][0, :16].tolist())
        return self.weight * 1.0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(module, data, folder, resume=None):
    saver = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    trainer = pl.Trainer(
        max_steps=8, callbacks=[saver], logger=False, accelerator="cpu", limit_val_batches=0,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(module, data(steps=8), ckpt_path=resume, weights_only=False)


def test_a_run_killed_in_mid_epoch_goes_on_with_the_very_next_batch(data, tmp_path):
    undisturbed = Recorder()
    fit(undisturbed, data, tmp_path / "whole")
    killed = Recorder(die_at=5)
    with pytest.raises(KilledError):
        fit(killed, data, tmp_path / "killed")
    resumed = Recorder()
    fit(resumed, data, tmp_path / "killed", resume=str(tmp_path / "killed/step=4.ckpt"))
    assert len(undisturbed.seen) == 8
    assert len({tuple(each) for each in undisturbed.seen}) == 8
    assert killed.seen == undisturbed.seen[:5]
    assert resumed.seen == undisturbed.seen[4:]
