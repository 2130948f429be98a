"""One turn: a process that trains a model with one optimizer, and writes what it measured. run.py starts it."""

from __future__ import annotations

import hashlib
import json
import re
import statistics
import sys
import tempfile
import time
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT / "bench")
sys.path.append(str(ROOT / "examples"))

import lowtide  # noqa: E402
import torch  # noqa: E402
from common import threads  # noqa: E402
from common.contenders import state_bytes  # noqa: E402
from common.llama import LLAMA_217M, Decoder, build, loss_of  # noqa: E402
from e2e import contenders  # noqa: E402
from e2e.contenders import Job  # noqa: E402
from llama.memory import peak_bytes, reset_peak, resident_bytes  # noqa: E402
from lowtide.planning.models import TYPES, model_of  # noqa: E402
from quality import corpus  # noqa: E402

SHAPES = {
    "llama-26M": Decoder(8, 512, 1376, 8, 8, 256),
    "llama-107M": Decoder(15, 768, 2048, 12, 12, 256),
    "llama-217M": LLAMA_217M,  # of bitsandbytes' benchmark of paged memory
}
FIRST = Decoder(1, 64, 128, 2, 2, 256)
SHARES = 4  # synchronized steps on a device, for the optimizer's share
TEXT = 1 << 20  # bytes that a tokenizer reads
WEIGHTS = ("*.safetensors", "*.bin")  # of a folder; without them its model is random
TOKENIZER = "tokenizer_config.json"
BYTES = 256  # tokens of a text without a tokenizer


def decoder_of(model: str) -> Decoder:
    """The numbers of a named shape, of "hidden x layers x inner x heads x vocabulary", or of a config. Raises ValueError."""
    if model in SHAPES:
        return SHAPES[model]
    if re.fullmatch(r"\d+(x\d+){4}", model):
        hidden, layers, inner, heads, vocabulary = map(int, model.split("x"))
        if not hidden or not heads or hidden % (2 * heads):
            raise ValueError(f"got {model}, wanted a width that is a multiple of twice the heads")
        return Decoder(layers, hidden, inner, heads, heads, vocabulary)
    found = model_of(model)
    if found.decoder is None:
        raise ValueError(f"got {model}: {found.unknown}")
    return found.decoder


def check_model(job: Job) -> None:
    """Raises ValueError if the model cannot take the text, OSError if the folder is incomplete, ImportError without transformers."""
    folder, needed, of = Path(job.model), BYTES, "bytes of text"
    if not folder.is_dir():
        vocabulary = decoder_of(job.model).vocabulary
    elif not (folder / "config.json").is_file():
        raise FileNotFoundError(f"--model: got {folder} without config.json, wanted a folder that save_pretrained wrote")
    else:
        from transformers import AutoConfig, AutoTokenizer

        config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
        vocabulary, places = config.vocab_size, getattr(config, "max_position_embeddings", job.seq)
        if job.seq > places:
            raise ValueError(f"--seq: got {job.seq}, wanted {places} or less, the positions of {folder}")
        if (folder / TOKENIZER).is_file():
            needed, of = len(AutoTokenizer.from_pretrained(folder, local_files_only=True)), "its tokenizer"
    if vocabulary < needed:
        raise ValueError(f"--model: got a vocabulary of {vocabulary}, wanted {needed} or more, for {of}")


def build_model(job: Job, where: str) -> torch.nn.Module:
    """The model from seed 0, or as the folder has it. Buffers keep their type: positions need fp32."""
    torch.manual_seed(0)
    with torch.device(where):
        if (folder := Path(job.model)).is_dir():
            from transformers import AutoConfig, AutoModelForCausalLM

            if any(file for end in WEIGHTS for file in folder.glob(end)):
                model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
            else:
                model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
            model.config.use_cache = False
        else:
            model = build(decoder_of(job.model), job.seq)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(where, getattr(torch, TYPES[job.dtype][0]))
    if job.checkpointing:
        model.gradient_checkpointing_enable()
    return model.to(where).train()


def tokens_of(job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens to train on and to validate with: of the folder's tokenizer if it has one, otherwise bytes."""
    text = corpus.load()
    if not Path(job.model, TOKENIZER).is_file():
        return text.train, text.validation
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(job.model, local_files_only=True)
    parts = (bytes(part[:TEXT].tolist()).decode(errors="replace") for part in (text.train, text.validation))
    train, validation = (torch.tensor(tokenizer(part)["input_ids"]) for part in parts)
    return train, validation


def weights_sha256(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


class Training:
    """A model in training, whose steps are timed."""

    def __init__(self, job: Job, model: torch.nn.Module, optimizer: Any, tokens: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.job, self.model, self.optimizer = job, model, optimizer
        self.train, self.validation = tokens
        self.module = None if job.device == "cpu" else getattr(torch, job.device)
        self.order = torch.Generator().manual_seed(0)
        self.driver_peak = 0

    def sync(self) -> None:
        if hasattr(self.optimizer, "synchronize"):
            self.optimizer.synchronize()
        if self.module:
            self.module.synchronize()

    def driver_bytes(self) -> int:
        if self.module is None:
            return 0
        free, total = self.module.mem_get_info()
        return int(total - free)

    def once(self, split: bool) -> list[tuple[float, float]]:
        """Seconds of forward and backward, and of the optimizer: by the clock, and of processors. split: waits for the device in
        between."""
        tokens = corpus.windows(self.train, self.job.batch, self.job.seq, self.order).to(self.job.device)
        now = [(time.perf_counter(), time.process_time())]
        loss_of(self.model, tokens).backward()
        if split:
            self.sync()
        now.append((time.perf_counter(), time.process_time()))
        if self.job.clip and hasattr(self.optimizer, "clip_grad_norm_"):
            self.optimizer.clip_grad_norm_(self.job.clip)
        elif self.job.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.job.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if split:
            self.sync()
        self.driver_peak = max(self.driver_peak, self.driver_bytes())
        now.append((time.perf_counter(), time.process_time()))
        return [(b - a, c - b) for a, b, c in zip(*now, strict=True)]

    def run(self, steps: int, split: bool) -> tuple[float, float, float, float]:
        """Seconds of a step, the optimizer's share of it, which means something if `split` or on the CPU, and processor seconds
        of a step and of the optimizer."""
        self.sync()
        start = time.perf_counter()
        pairs, worked = zip(*(self.once(split) for _ in range(steps)), strict=True)
        self.sync()
        total = (time.perf_counter() - start) / steps
        seconds = total if self.module else statistics.median(map(sum, pairs))
        share = statistics.median(second / (first + second) for first, second in pairs)
        return seconds, share, statistics.median(map(sum, worked)), statistics.median(second for _, second in worked)

    @torch.no_grad()
    def loss(self) -> float:
        """The loss on the same held-out tokens for all optimizers, in nats per token."""
        tokens = corpus.windows(self.validation, self.job.batch, self.job.seq, torch.Generator().manual_seed(1))
        return float(loss_of(self.model, tokens.to(self.job.device)))


def train(job: Job, name: str) -> dict[str, Any]:
    """Trains with a contender, and returns the figures of its turn."""
    contender = contenders.ALL[name]
    contender.load()
    # Passes of one layer, so that loads and imports that happen once are in no peak.
    with torch.device(job.device):
        loss_of(build(FIRST, job.seq), torch.zeros(1, job.seq, dtype=torch.int64)).backward()
    tokens = tokens_of(job)
    with tempfile.TemporaryDirectory(dir=job.disk) as scratch:
        level = resident_bytes()
        # Those that take a model bring it to the device themselves.
        built = build_model(job, "cpu" if contender.whole else job.device)
        sizes = [(parameter.numel(), parameter.nbytes) for parameter in built.parameters()]
        own = set(map(id, built.parameters()))
        model, optimizer = contenders.make(name, built, job, scratch)
        training = Training(job, model, optimizer, tokens)
        if training.module:
            training.module.empty_cache()
            training.module.reset_peak_memory_stats()
        told = reset_peak()
        training.run(job.warmup, split=False)
        delay, start = threads.queue_delay(), time.perf_counter_ns()
        seconds, share, worked, own_work = training.run(job.steps, split=False)
        delay = (threads.queue_delay() - delay) / (time.perf_counter_ns() - start)
        if training.module:
            share = training.run(SHARES, split=True)[1]
        rss = peak_bytes() if told else None
        report = dict(optimizer.report()) if name in contenders.OWN else {}
        beside = sum(p.nbytes for group in optimizer.param_groups for p in group["params"] if id(p) not in own)
        return {
            "optimizer": name,
            "package": lowtide.__version__ if contender.package == "lowtide" else metadata.version(contender.package),
            "parameters": sum(numel for numel, _ in sizes),
            "weight_bytes": sum(nbytes for _, nbytes in sizes),
            "tokens_per_s": job.batch * job.seq / seconds,
            "optimizer_share": None if name in contenders.IN_BACKWARD else share,
            "cpu_seconds": worked,
            "optimizer_cpu_seconds": None if name in contenders.IN_BACKWARD else own_work,
            "ram_peak_bytes": rss and rss - level,
            "rss_peak_bytes": rss,
            "device_peak_bytes": training.module and training.module.max_memory_allocated(),
            "driver_peak_bytes": training.module and training.driver_peak,
            "state_bytes": report.get("state_bytes") or state_bytes(optimizer) + (0 if contender.whole else beside),
            "fast_state_bytes": report.get("device_bytes" if training.module else "allocated_bytes"),
            "disk_bytes": report.get("disk_bytes", 0),
            "moved_bytes": report.get("moved_per_step", 0),
            "loss": training.loss(),
            "weights": None if contender.whole else weights_sha256(model),
            "delay": delay,
        }


def main(job: str, name: str, out: str) -> None:
    try:
        found = train(Job(**json.loads(job)), name)
    except Exception as error:  # binaries, compilers and drivers raise many types
        traceback.print_exc()
        found = {"absent": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"}
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
