"""The shapes of a model, from its name, its configuration, a list or a number. Imports no torch and reads no weights."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowtide.checks.hints import format_hint, hint

Shape = tuple[int, ...]
_COLUMNS, _MOST_MATRICES = 4096, 4096  # for a bare number of parameters; more parameters make larger matrices
_MOST_PARAMS = 1 << 46
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30}
TYPES = {"fp32": ("float32", 4), "bf16": ("bfloat16", 2), "fp16": ("float16", 2)}  # torch's name, and bytes
_SAME_TYPE = {"f32": "fp32", "float": "fp32", "bfloat": "bf16", "f16": "fp16", "half": "fp16", **{name: short for short, (name, _) in TYPES.items()}}
WANTED_SHAPES = "wanted a module, tensors, groups of them (dicts with 'params'), shapes (tuples of sizes) or a number of parameters"


def type_named(given: object) -> str:
    """ "fp32", "bf16" or "fp16" for a type under any of its names, such as "bfloat16", or for torch's own; other texts
    unchanged."""
    text = str(given).removeprefix("torch.")
    return _SAME_TYPE.get(text.lower(), text)


def state_of(name: str, text: str, known: Sequence[str]) -> str:
    """The state format that a text means; types may have any of their names. Raises ValueError about `name`."""
    found = type_named(text)
    if found not in known:
        raise ValueError(f"{name}: got {text!r}{format_hint(found, known) or hint(found, known)}, wanted one of {', '.join(known)}")
    return found


@dataclass(frozen=True)
class Decoder:
    """A decoder like LLaMA, by the numbers in its config.json."""

    layers: int
    hidden: int
    inner: int  # width of the feed-forward network: gate, up and down
    heads: int
    keys: int  # heads of keys and values
    vocabulary: int
    head: int = 0  # elements of a head; 0: hidden / heads
    tied: bool = False  # the output layer is the embedding
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False  # queries and keys are normalized by head

    @property
    def queries(self) -> int:
        """Elements of the queries per token."""
        return self.heads * (self.head or self.hidden // self.heads)

    @property
    def kv(self) -> int:
        """Elements of the keys per token."""
        return self.queries // self.heads * self.keys

    def layer(self) -> dict[str, Shape]:
        """The parameters of a layer: name → shape."""
        h, q, kv, inner = self.hidden, self.queries, self.kv, self.inner
        found: dict[str, Shape] = {
            "q": (q, h), "k": (kv, h), "v": (kv, h), "o": (h, q), "gate": (inner, h), "up": (inner, h), "down": (h, inner),
            "norm1": (h,), "norm2": (h,),
        }  # fmt: skip
        if self.qkv_bias:
            found |= {"q.bias": (q,), "k.bias": (kv,), "v.bias": (kv,)}
        if self.o_bias:
            found["o.bias"] = (h,)
        if self.qk_norm:
            found |= {"q.norm": (q // self.heads,), "k.norm": (q // self.heads,)}
        return found

    def shapes(self) -> list[Shape]:
        """The shapes of all parameters."""
        table = (self.vocabulary, self.hidden)
        return [table, *[*self.layer().values()] * self.layers, (self.hidden,), *([] if self.tied else [table])]


def elements(shapes: Sequence[Shape]) -> int:
    return sum(map(math.prod, shapes))


# Numbers from published configurations.
DECODERS = {
    "Llama-2-7B": Decoder(32, 4096, 11008, 32, 32, 32000),
    "Llama-2-13B": Decoder(40, 5120, 13824, 40, 40, 32000),
    "Llama-2-70B": Decoder(80, 8192, 28672, 64, 8, 32000),
    "Llama-3-8B": Decoder(32, 4096, 14336, 32, 8, 128256),
    "Llama-3-70B": Decoder(80, 8192, 28672, 64, 8, 128256),
    "Llama-3.1-8B": Decoder(32, 4096, 14336, 32, 8, 128256),
    "Llama-3.1-70B": Decoder(80, 8192, 28672, 64, 8, 128256),
    "Llama-3.1-405B": Decoder(126, 16384, 53248, 128, 8, 128256),
    "Llama-3.2-1B": Decoder(16, 2048, 8192, 32, 8, 128256, tied=True),
    "Llama-3.2-3B": Decoder(28, 3072, 8192, 24, 8, 128256, tied=True),
    "Llama-3.3-70B": Decoder(80, 8192, 28672, 64, 8, 128256),
    "Mistral-7B-v0.1": Decoder(32, 4096, 14336, 32, 8, 32000),
    "Mistral-7B-v0.3": Decoder(32, 4096, 14336, 32, 8, 32768),
    "Mistral-Nemo-2407": Decoder(40, 5120, 14336, 32, 8, 131072, head=128),
    "Mistral-Small-24B-2501": Decoder(40, 5120, 32768, 32, 8, 131072, head=128),
    "Qwen2.5-0.5B": Decoder(24, 896, 4864, 14, 2, 151936, tied=True, qkv_bias=True),
    "Qwen2.5-1.5B": Decoder(28, 1536, 8960, 12, 2, 151936, tied=True, qkv_bias=True),
    "Qwen2.5-3B": Decoder(36, 2048, 11008, 16, 2, 151936, tied=True, qkv_bias=True),
    "Qwen2.5-7B": Decoder(28, 3584, 18944, 28, 4, 152064, qkv_bias=True),
    "Qwen2.5-14B": Decoder(48, 5120, 13824, 40, 8, 152064, qkv_bias=True),
    "Qwen2.5-32B": Decoder(64, 5120, 27648, 40, 8, 152064, qkv_bias=True),
    "Qwen2.5-72B": Decoder(80, 8192, 29568, 64, 8, 152064, qkv_bias=True),
    "Qwen3-0.6B": Decoder(28, 1024, 3072, 16, 8, 151936, head=128, tied=True, qk_norm=True),
    "Qwen3-1.7B": Decoder(28, 2048, 6144, 16, 8, 151936, head=128, tied=True, qk_norm=True),
    "Qwen3-4B": Decoder(36, 2560, 9728, 32, 8, 151936, head=128, tied=True, qk_norm=True),
    "Qwen3-8B": Decoder(36, 4096, 12288, 32, 8, 151936, head=128, qk_norm=True),
    "Qwen3-14B": Decoder(40, 5120, 17408, 40, 8, 151936, head=128, qk_norm=True),
    "Qwen3-32B": Decoder(64, 5120, 25600, 64, 8, 151936, head=128, qk_norm=True),
}
_TUNED = re.compile(r"^meta-|-(?:instruct|chat|base|hf|it)\b")  # marks of tuned models, which have the shapes of the plain one
_MOST_LAYERS = 1 << 16
_MOST_BYTES = 64 << 20  # the most bytes of a file with shapes or a configuration
_LIKE_LLAMA = ("llama", "mistral", "qwen2", "qwen3")  # values of model_type


@dataclass(frozen=True)
class Model:
    """A model to be trained, as far as its description tells."""

    name: str
    shapes: Sequence[Shape]
    decoder: Decoder | None = None
    unknown: str = ""  # the reason why there is no decoder
    mixed: bool = False  # frozen weights have another type than trained ones
    layout: Callable[[int, bool], Any] | None = None  # bytes per trained element, and whether a device computes → its `Layout`


def model_of(given: str | os.PathLike[str] | float) -> Model:
    """Finds a model by the name of a published one, a folder or file with its configuration, a file of shapes, or a number of
    parameters. A name with a "/" is first looked up in the local cache of Hugging Face. Raises ValueError or OSError."""
    if isinstance(given, float) and not given.is_integer():
        raise ValueError(f"model: got {given!r}, wanted a whole number of parameters, such as 7e9")
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return _of_number(f"{given:g}" if isinstance(given, float) else str(given), int(given))
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"model: got {given!r} ({type(given).__name__}), wanted a name, a folder, a file, a number of parameters, shapes or a module")
    text = os.fspath(given)
    path = Path(text)
    if text and path.is_dir():
        return of_config(path / "config.json", path.name or text)
    if (text and path.exists()) or path.suffix == ".json":
        content = _json(path)
        return of_config(path, str(path)) if path.name == "config.json" or (isinstance(content, dict) and "model_type" in content) else _of_shapes(path, content)
    if (count := count_of(text)) is not None:
        return _of_number(text, count)
    if "/" in text and (cached := _cached(text)):
        return of_config(cached, text)
    plain, known = _plain(text), {_plain(name): name for name in DECODERS}
    if plain in known:
        name = known[plain]
        return Model(name, DECODERS[name].shapes(), DECODERS[name])
    raise ValueError(
        f"got {text!r}{hint(plain, [*DECODERS])}, wanted a folder with config.json, a file of that kind or of shapes, a number of parameters such as 7e9, a "
        f"model in the local cache of Hugging Face, or one of {', '.join(DECODERS)}"
    )


def _plain(name: str) -> str:
    """The part of a model's name that determines its shapes."""
    return _TUNED.sub("", name.rsplit("/", 1)[-1].casefold())


def count_of(text: str) -> int | None:
    """ "7e9", "7B", "16Mi" as a number; None for other texts, and for numbers below 1 or too large."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?(?:e\+?[0-9]{1,2})?)\s*([a-z]*)\s*", text.lower(), re.ASCII)
    unit = _UNITS.get(match[2]) if match else None
    value = float(match[1]) * unit if match and unit else math.nan
    return int(value) if 1 <= value < 2**63 else None


def _of_number(name: str, params: int) -> Model:
    why = "a number of parameters says nothing about layers: give a name or a config.json"
    shapes, columns = of_count(params), _columns(params)
    return Model(f"{name}, taken for matrices of {columns} by {columns}", shapes, unknown=why)


def of_count(params: int) -> list[Shape]:
    """Shapes with `params` parameters in all: square matrices, one of fewer rows, and one vector."""
    if not 1 <= params <= _MOST_PARAMS:
        raise ValueError(f"got {params} parameters, wanted 1 to {_MOST_PARAMS}")
    columns = _columns(params)
    whole, rest = divmod(params, columns * columns)
    rows, vector = divmod(rest, columns)
    shapes: list[Shape] = [(columns, columns)] * whole
    return shapes + ([(rows, columns)] if rows else []) + ([(vector,)] if vector else [])


def _columns(params: int) -> int:
    """The width of the matrices, so that there are few enough for a fast plan."""
    columns = _COLUMNS
    while params > _MOST_MATRICES * columns * columns:
        columns *= 2
    return columns


def _of_shapes(path: Path, content: Any) -> Model:
    shapes = list(content.values()) if isinstance(content, dict) else content
    if not isinstance(shapes, list):
        raise ValueError(f"{path}: got {type(content).__name__}, wanted a list of shapes or an object of name: shape")
    if not shapes:
        raise ValueError(f"{path}: got no shapes, wanted those of a model's parameters")
    checked = [shape_of(shape, f"{path}, shape {n}", "wanted a list of sizes such as [4096, 4096]") for n, shape in enumerate(shapes)]
    return Model(str(path), checked, unknown="shapes say nothing about layers: give a name or a config.json")


def shape_of(value: Any, where: str, wanted: str = WANTED_SHAPES) -> Shape:
    """A tuple or list of sizes as a shape. Raises TypeError, with `wanted`, or ValueError, both beginning with `where`."""
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"{where}: got {value!r} ({type(value).__name__}), {wanted}")
    for size in value:
        if not isinstance(size, int) or isinstance(size, bool):
            raise TypeError(f"{where}: got a size of {size!r} ({type(size).__name__}), wanted an int")
        if not 0 <= size < 2**63:
            raise ValueError(f"{where}: got a size of {size}, wanted 0 to 2^63 - 1")
    return tuple(value)


def of_config(path: Path, name: str) -> Model:
    """The causal language model of a `config.json`. If its layers are not like LLaMA's, Transformers, which must be installed,
    makes it on the meta device, and its activations stay unknown."""
    content = _json(path)
    kind = content.get("model_type") if isinstance(content, dict) else None
    if not isinstance(kind, str):
        raise ValueError(f"{path}: got no model_type, wanted the config.json of a transformers model")
    if decoder := decoder_of(content):
        return Model(name, decoder.shapes(), decoder)
    why = f"the formula is for layers like LLaMA's (model_type {', '.join(_LIKE_LLAMA)}), got {kind!r}"
    return Model(name, _of_transformers(path, content), unknown=why)


def decoder_of(config: Mapping[str, Any]) -> Decoder | None:
    """The decoder that a config.json describes, or None if it is not like LLaMA. Raises ValueError for impossible sizes."""
    kind = config.get("model_type")
    if kind not in _LIKE_LLAMA or config.get("mlp_bias") or config.get("hidden_act", "silu") != "silu":
        return None
    sizes: dict[str, Any] = {"num_hidden_layers": 0, "hidden_size": 0, "intermediate_size": 0, "num_attention_heads": 0, "vocab_size": 0}
    for key in sizes:
        sizes[key] = config.get(key)
        if sizes[key] is None:
            return None  # transformers knows the default for this kind
    layers, hidden, inner, heads, vocabulary = sizes.values()
    keys, head = config.get("num_key_value_heads") or heads, config.get("head_dim") or 0
    for key, size in {**sizes, "num_key_value_heads": keys, "head_dim": head or 1}.items():
        most = _MOST_LAYERS if key == "num_hidden_layers" else 2**31
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size < most:
            raise ValueError(f"config.json: {key}: got {size!r}, wanted a whole number from 1 to {most - 1}")
    if heads % keys or (not head and hidden % heads):
        got = f"{heads} heads, {keys} of keys and values, for a width of {hidden}"
        raise ValueError(f"config.json: got {got}, wanted numbers that divide each other")
    if kind == "qwen3" and not head:
        return None
    bias = bool(config.get("attention_bias")) and kind in ("llama", "qwen3")
    return Decoder(
        layers, hidden, inner, heads, keys, vocabulary, head, bool(config.get("tie_word_embeddings")),
        qkv_bias=bias or kind == "qwen2", o_bias=bias, qk_norm=kind == "qwen3",
    )  # fmt: skip


def _of_transformers(path: Path, content: dict[str, Any]) -> list[Shape]:
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise ValueError(f"{path}: transformers is not installed: pip install transformers, or use shapes") from error
    content = dict(content)
    kind = content.pop("model_type")
    try:
        config = AutoConfig.for_model(kind, **content)
        build: Any = AutoModelForCausalLM.from_config  # transformers does not annotate it
        with torch.device("meta"):
            model = build(config)
    except Exception as error:  # transformers may raise anything for a config that it cannot use
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path}: transformers cannot make a causal language model of it: {reason[:200]}") from None
    return [tuple(param.shape) for param in model.parameters() if param.requires_grad]


def _cached(name: str) -> Path | None:
    """The path of a model's config.json in the local cache of Hugging Face."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface")
    folder = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    try:
        commit = (folder / "refs" / "main").read_text().strip()
    except OSError:
        return None
    config = folder / "snapshots" / commit / "config.json"
    return config if config.exists() else None


def _json(path: Path) -> Any:
    if path.exists() and (not path.is_file() or path.stat().st_size > _MOST_BYTES):
        raise ValueError(f"{path}: got no file, or one of more than {_MOST_BYTES >> 20} MiB, wanted a config.json or a JSON file of shapes")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also for bytes that are not text and numbers that are too long
        raise ValueError(f"{path}: got a file that is not JSON: {error}") from None
