"""An adapter as files: ``adapter_config.json`` and ``adapter_model.safetensors``, here or on the
Hugging Face hub."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import ModelHubMixin, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from focus.card import is_hub_id, model_card
from focus.config import FocusConfig
from focus.version import __version__

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
CARD_FILE = "README.md"
MODEL_CONFIG_FILE = "config.json"  # an adapter of format 1 had its own there
# Where an adapter goes in a folder that is a model's or another library's.
SUBFOLDER = "focus"
FORMAT = 2
MOVING = threading.Lock()
# No such type is known to peft, which then refuses the adapter and does not load it wrongly.
PEFT_TYPE = "FOCUS"


class FocusAdapter(ModelHubMixin, library_name="focus-attention", tags=["focus"]):
    """Trained routers and what they belong to, apart from any model.

    Attributes:
        config: what is routed and how.
        tensors: ``layers.<index>.<name>`` -> parameters and potentials, on the CPU.
        base: facts of the base model: ``base_model_name_or_path``, ``revision``, sizes and
            ``fingerprint`` (None where there was none to take).
    """

    def __init__(self, config: FocusConfig, tensors: Mapping[str, Tensor],
                 base: Mapping[str, Any]) -> None:  # fmt: skip
        self.config = config
        self.tensors = dict(tensors)
        self.base = dict(base)

    def save_pretrained(self, save_directory: str | Path, *, push_to_hub: bool = False,
                        repo_id: str | None = None, card: Any = None,
                        model_card_kwargs: Mapping[str, Any] | None = None,
                        **push: Any) -> str | None:  # fmt: skip
        """Writes the adapter as :meth:`write` does, and pushes it to the hub if asked to.

        Args:
            save_directory: made if need be.
            push_to_hub, repo_id, push: as of :meth:`push_to_hub`; the folder's name by default.
            card: facts of the training run for the model card.
            model_card_kwargs: the same from huggingface_hub: its ``card`` is read.

        Returns:
            The commit's address where it was pushed.
        """
        push.pop("config", None)  # huggingface_hub hands one over, of which ours is the truth
        card = (model_card_kwargs or {}).get("card", card)
        self.write(save_directory, card)
        if not push_to_hub:
            return None
        repo_id = repo_id or Path(save_directory).resolve().name
        return self.push_to_hub(repo_id, model_card_kwargs={"card": card}, **push)

    def write(self, folder: str | Path, card: Any = None) -> Path:
        """Writes the adapter to a folder, and a model card where it has none.

        In a folder of a model or of another library's adapter the files go to its subfolder
        ``focus``: transformers would take an ``adapter_config.json`` beside a model for peft's, and
        could not load the model. One of Focus that lies there, from before the model was saved, is
        removed.
        Files are written beside their places and moved there, the config last, so that a folder
        with a config is complete.

        Args:
            folder: made if need be.
            card: facts of the training run for the card: a mapping, or a JSON file's path.

        Returns:
            The folder that the files are in.

        Raises:
            ValueError: a value is NaN or infinite; nothing is written then.
        """
        for name, tensor in self.tensors.items():
            if not bool(tensor.isfinite().all()):
                raise ValueError(f"{name}: holds NaN or infinity, so nothing was saved; train the "
                                 "routers again from an earlier adapter")  # fmt: skip
        given = Path(folder)
        folder = own_folder(given)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / CARD_FILE).exists():
            count = sum(tensor.numel() for tensor in self.tensors.values())
            text = model_card(self.config, self.base, count, card)
            (folder / CARD_FILE).write_text(text)
        weights, config = _beside(folder / WEIGHTS_FILE), _beside(folder / CONFIG_FILE)
        try:
            save_file({k: t.contiguous() for k, t in self.tensors.items()}, weights)
            config.write_text(json.dumps(self.description(), indent=2) + "\n")
            # Never one adapter's config beside another's weights, whatever happens in between.
            with MOVING:
                (folder / CONFIG_FILE).unlink(missing_ok=True)
                weights.replace(folder / WEIGHTS_FILE)
                config.replace(folder / CONFIG_FILE)
                if folder != given:
                    _forget(given)
        finally:
            weights.unlink(missing_ok=True)
            config.unlink(missing_ok=True)
        return folder

    def description(self) -> dict[str, Any]:
        """What ``adapter_config.json`` holds."""
        base = dict(self.base)
        return {
            "peft_type": PEFT_TYPE,
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base.pop("base_model_name_or_path", None),
            "revision": base.pop("revision", None),
            "format": FORMAT,
            "focus": self.config.to_dict(),
            "base": base,
            "versions": {
                "focus": __version__,
                **{name: version(name) for name in ("torch", "transformers")},
            },
        }

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, *,
                        force_download: bool = False, token: str | bool | None = None,
                        cache_dir: str | Path | None = None, local_files_only: bool = False,
                        revision: str | None = None,
                        **model_kwargs: Any) -> FocusAdapter:  # fmt: skip
        """Reads an adapter from a folder, or from the hub.

        Args:
            pretrained_model_name_or_path: a folder of :meth:`save_pretrained` (also a model's, with
                the adapter in its subfolder ``focus``), else the id of a repository on the hub.
            force_download, token, cache_dir, local_files_only, revision: as of huggingface_hub.
            model_kwargs: none are known.

        Raises:
            ValueError: there is no adapter, it cannot be reached, is damaged, or of another format.
        """
        if model_kwargs:
            raise ValueError(f"{next(iter(model_kwargs))}: no argument of FocusAdapter")
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            options = {
                "force_download": force_download, "token": token, "cache_dir": cache_dir,
                "local_files_only": local_files_only, "revision": revision,
            }  # fmt: skip
            folder = _download(str(pretrained_model_name_or_path), options)
        for place in (own_folder(folder), folder, folder / SUBFOLDER):
            if (place / CONFIG_FILE).is_file() and _is_ours(place / CONFIG_FILE):
                return cls._read(place)
        found = _model_config(folder)
        if "focus" in found:
            raise ValueError(
                f"{folder / MODEL_CONFIG_FILE}: an adapter of format {found.get('format')!r}, "
                "which this version of Focus cannot read; train it again, or save it again with "
                "one that can"
            )
        raise ValueError(
            f"{folder}: no {CONFIG_FILE} of Focus; give a folder written by focus.save_adapter"
        )

    @classmethod
    def _read(cls, folder: Path) -> FocusAdapter:
        path = folder / CONFIG_FILE
        found = _read_json(path)
        _check_description(path, found)
        keys = ("base_model_name_or_path", "revision")
        base = {**{key: found.get(key) for key in keys}, **found["base"]}
        try:
            config = FocusConfig.from_dict(found["focus"])
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error
        return cls(config, _read_weights(folder / WEIGHTS_FILE), base)


def own_folder(folder: Path) -> Path:
    """Where an adapter's files go: the folder, or its subfolder where it is somebody else's."""
    models = "model_type" in _model_config(folder)
    foreign = (folder / CONFIG_FILE).is_file() and not _is_ours(folder / CONFIG_FILE)
    return folder / SUBFOLDER if models or foreign else folder


def _model_config(folder: Path) -> dict[str, Any]:
    """What a folder's ``config.json`` holds; nothing where it is no JSON object, so no model's."""
    path = folder / MODEL_CONFIG_FILE
    with suppress(ValueError):
        return _read_json(path) if path.is_file() else {}
    return {}


def _forget(folder: Path) -> None:
    """Removes an adapter of Focus from a folder that is a model's now."""
    if (folder / CONFIG_FILE).is_file() and _is_ours(folder / CONFIG_FILE):
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            (folder / name).unlink(missing_ok=True)


def _is_ours(path: Path) -> bool:
    """Another library's file names its own type of adapter; a damaged one is not theirs."""
    with suppress(ValueError, FileNotFoundError):  # another thread is writing it again
        found = _read_json(path)
        return found.get("peft_type") == PEFT_TYPE or "focus" in found
    return True


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); save the adapter again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: not a JSON object; save the adapter again")
    return found


def _check_description(path: Path, found: Mapping[str, Any]) -> None:
    if found.get("format") != FORMAT:
        raise ValueError(
            f"{path}: not a Focus adapter of format {FORMAT} (format = {found.get('format')!r}); "
            "save it again, with this version of Focus"
        )
    for name in ("focus", "base"):
        if not isinstance(found.get(name), dict):
            raise ValueError(f"{path}: {name!r} is missing; save the adapter again")
    if not isinstance(found["base"].get("fingerprint"), dict | None):
        raise ValueError(f"{path}: base.fingerprint is no JSON object; save the adapter again")


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"{path.parent}: no {path.name}; the adapter is incomplete, save it again")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not readable as safetensors ({error})") from error


def _download(name: str, options: Mapping[str, Any]) -> Path:
    """The folder of a repository's files in the local cache."""
    if not is_hub_id(name):
        raise ValueError(f"{name}: no such folder, and no id of a repository on the hub")
    try:
        hf_hub_download(name, WEIGHTS_FILE, **options)
        return Path(hf_hub_download(name, CONFIG_FILE, **options)).parent
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ValueError(
            f"{name}: no such folder, and no Focus adapter could be fetched from the hub "
            f"({type(error).__name__}: {error}); check the id and the connection, or give a "
            "folder written by focus.save_adapter"
        ) from error
