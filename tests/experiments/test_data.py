from __future__ import annotations

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from experiments import data
from experiments.data import BooksDataModule, Document


@pytest.fixture
def corpus(tmp_path):
    """A training side whose tokens tell book and place: book 0 has 0.., book 1 has 1000.."""
    books = [(f"book {b}", list(range(1000 * b, 1000 * b + 90 + 7 * b))) for b in range(3)]
    data.save_split(tmp_path / "train.npz", books)
    data.save_split(tmp_path / "test.npz", [])
    return tmp_path


def test_a_split_comes_back_as_it_was_written(corpus):
    books = data.load_split("train", corpus)
    assert [book.title for book in books] == ["book 0", "book 1", "book 2"]
    assert [len(book.tokens) for book in books] == [90, 97, 104]
    assert books[1].tokens.dtype == torch.int64
    assert books[1].tokens[:3].tolist() == [1000, 1001, 1002]
    assert data.load_split("test", corpus) == []


def test_the_same_content_gives_the_same_bytes(tmp_path):
    for name in "ab":
        data.save_split(tmp_path / f"{name}.npz", [("x", [1, 2, 3])])
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_missing_or_misspelt_split_is_named(corpus):
    with pytest.raises(ValueError, match=r"validation\.npz is missing: run `python -m exp"):
        data.load_split("validation", corpus)
    with pytest.raises(ValueError, match="split: must be one of train, validation, test"):
        data.load_split("valid", corpus)
    with pytest.raises(ValueError, match=r"corpus\.json is missing"):
        data.manifest(corpus)


@pytest.mark.parametrize(
    ("context", "stride", "starts"),
    [(4, 4, [0, 4]), (4, 2, [0, 2, 4, 6]), (10, 1, [0]), (1, 9, [0, 9]), (3, 7, [0, 7])],
)
def test_windows_are_all_the_full_ones(context, stride, starts):
    document = Document("book", torch.arange(10))
    found = data.windows(document, context, stride)
    assert found.shape == (len(starts), context)
    for row, start in zip(found, starts, strict=True):
        assert row.tolist() == list(range(start, start + context))


def test_windows_refuse_what_gives_none():
    document = Document("Emma", torch.arange(10))
    with pytest.raises(ValueError, match="Emma: 10 tokens are fewer than one window of 11"):
        data.windows(document, 11, 1)
    for context, stride in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="must be >= 1"):
            data.windows(document, context, stride)


def batches(module: BooksDataModule) -> list[list[int]]:
    return [batch["input_ids"][:, 0].tolist() for batch in module.train_dataloader()]


def test_every_window_comes_once_before_any_comes_again(corpus):
    module = BooksDataModule(30, 1, 18, seed=3, folder=corpus)
    starts = [row[0] for row in batches(module)]
    first, second = starts[:9], starts[9:]
    assert sorted(first) == sorted(second) == [0, 30, 60, 1000, 1030, 1060, 2000, 2030, 2060]
    assert first != second


def test_the_order_is_the_seeds_and_the_batches_have_the_shape_asked_for(corpus):
    module = BooksDataModule(30, 2, 4, seed=3, folder=corpus)
    found = [batch["input_ids"] for batch in module.train_dataloader()]
    assert [tuple(b.shape) for b in found] == [(2, 30)] * 4
    assert batches(module) == batches(BooksDataModule(30, 2, 4, seed=3, folder=corpus))
    assert batches(module) != batches(BooksDataModule(30, 2, 4, seed=4, folder=corpus))


def test_more_steps_begin_with_the_same_batches(corpus):
    few = batches(BooksDataModule(30, 1, 5, seed=3, folder=corpus))
    many = batches(BooksDataModule(30, 1, 12, seed=3, folder=corpus))
    assert many[:5] == few


def test_a_share_of_the_windows_has_a_passage_twice(corpus):
    plain, copied = (
        [b["input_ids"][0] for b in BooksDataModule(30, 1, 8, 3, corpus, share).train_dataloader()]
        for share in (0.0, 0.25)
    )
    changed = [n for n, (a, b) in enumerate(zip(plain, copied, strict=True)) if not a.equal(b)]
    assert changed == [3, 7]
    again = BooksDataModule(30, 1, 8, 3, corpus, 0.25).train_dataloader()
    assert all(a["input_ids"][0].equal(b) for a, b in zip(again, copied, strict=True))


@pytest.mark.parametrize("total", [2, 3, 64, 2048])
@pytest.mark.parametrize("seed", range(5))
def test_the_passage_stands_in_the_first_half_and_in_the_last_third(total, seed):
    ids = torch.arange(total)
    copy = data.with_copy(ids, torch.Generator().manual_seed(seed))
    (where,) = (copy != ids).nonzero(as_tuple=True)
    assert len(where) == int(where[-1] - where[0]) + 1
    assert max(1, total // 16) <= len(where) <= max(1, 3 * total // 16)
    assert int(where[0]) >= 2 * total // 3
    source = copy[where]
    assert source.equal(torch.arange(int(source[0]), int(source[0]) + len(where)))
    assert int(source[-1]) < max(1, total // 2)


@pytest.mark.parametrize("field", ["context", "batch_size", "steps"])
def test_a_module_refuses_counts_below_one(field):
    values = {"context": 4, "batch_size": 1, "steps": 1, field: 0}
    with pytest.raises(ValueError, match=f"{field}: must be >= 1"):
        BooksDataModule(**values, seed=0)


def test_no_training_documents_is_an_error(tmp_path):
    data.save_split(tmp_path / "train.npz", [])
    with pytest.raises(ValueError, match="no training documents"):
        BooksDataModule(4, 1, 1, seed=0, folder=tmp_path).setup()


class KilledError(Exception):
    pass


class Recorder(pl.LightningModule):
    """Notes the first token of each batch, and dies before a chosen step."""

    def __init__(self, die_at: int | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[int] = []
        self.die_at = die_at

    def training_step(self, batch, index):
        if self.global_step == self.die_at:
            raise KilledError
        self.seen.append(int(batch["input_ids"][0, 0]))
        return self.weight * 1.0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(module, corpus, folder, resume=None):
    saver = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    trainer = pl.Trainer(
        max_steps=8, callbacks=[saver], logger=False, accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, BooksDataModule(30, 1, 8, seed=5, folder=corpus), ckpt_path=resume)


def test_a_run_killed_in_mid_epoch_goes_on_with_the_very_next_batch(corpus, tmp_path):
    undisturbed = Recorder()
    fit(undisturbed, corpus, tmp_path / "whole")
    killed = Recorder(die_at=5)
    with pytest.raises(KilledError):
        fit(killed, corpus, tmp_path / "killed")
    resumed = Recorder()
    fit(resumed, corpus, tmp_path / "killed", resume=str(tmp_path / "killed/step=4.ckpt"))
    assert len(undisturbed.seen) == 8
    assert killed.seen == undisturbed.seen[:5]
    assert resumed.seen == undisturbed.seen[4:]
