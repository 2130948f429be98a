"""For test_readme.py: the code that fragments in documents assume. A fragment runs after its prelude, in one process on the
CPU, in an empty folder. A CPU instead of a device only shows that names and arguments are right."""

GROUP = """
import os
import torch
os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", WORLD_SIZE="1")
import socket
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    os.environ["MASTER_PORT"] = str(free.getsockname()[1])
"""
JOINED = GROUP + """
torch.distributed.init_process_group("gloo")
import atexit
atexit.register(torch.distributed.destroy_process_group)
"""
LLAMA = """
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2)
name = "model"
LlamaForCausalLM(config).save_pretrained(name)
"""

PRELUDES = {
    ("README.md", 0): """
from transformers import LlamaForCausalLM, Trainer, TrainingArguments
import lowtide, torch
""" + LLAMA + """
model = LlamaForCausalLM.from_pretrained(name)
data = [{"input_ids": torch.arange(16), "labels": torch.arange(16)}] * 8
args = TrainingArguments("out", max_steps=2, use_cpu=True, report_to=[])
""",
    ("docs/will-it-fit.md", 0): """
import functools, transformers
import lowtide, torch
""" + LLAMA + """
from transformers import Trainer
model = LlamaForCausalLM.from_pretrained(name).to(torch.bfloat16)
model.save_pretrained(name)
data = [{"input_ids": torch.arange(16), "labels": torch.arange(16)}] * 8
TrainingArguments = functools.partial(transformers.TrainingArguments, max_steps=2, use_cpu=True, report_to=[])
""",
    ("docs/gpu.md", 0): """
import lowtide, torch
class OnCpu(torch.nn.Linear):
    def to(self, device): return self
model = OnCpu(8, 8)
""",
    ("docs/gpu.md", 3): "import lowtide\n" + LLAMA,
    ("docs/gpu.md", 1): """
import lowtide, torch
model = torch.nn.Linear(64, 64)
opt = lowtide.AdamW(model.parameters())
def forward_backward(x, y):
    loss = (model(x) - y).square().mean()
    loss.backward()
    return loss
batches = [(torch.randn(4, 64), torch.randn(4, 64))] * 2
""",
    **dict.fromkeys([("docs/python-api.md", 0), ("docs/python-api.md", 1)], """
import lowtide, torch
model, opt = torch.nn.Module(), lowtide.AdamW([torch.nn.Parameter(torch.ones(8))])
model.head, model.embed, model.norm = torch.nn.Linear(64, 64), torch.nn.Embedding(64, 64), torch.nn.LayerNorm(64)
"""),
    ("docs/distributed.md", 0): GROUP,
    ("docs/distributed.md", 1): JOINED + """
import lowtide
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
model = FSDP(torch.nn.Linear(128, 128), device_id=torch.device("cpu"), use_orig_params=True)
opt = lowtide.AdamW(model.parameters())
model(torch.randn(4, 128)).square().mean().backward()
opt.step()
""",
    ("docs/project/votes.md", 0): """
import torch
gradient, run, step = torch.randn(1000), 1, 2
from lowtide import sign as before
theirs = [before.pack(torch.randn(1000))]
""",
    ("docs/distributed.md", 2): JOINED + """
import lowtide.distributed as votes
model = torch.nn.Linear(64, 64)
""",
    ("docs/distributed.md", 3): JOINED + """
import lowtide.distributed as votes
from torch.distributed.fsdp import fully_shard
model = torch.nn.Module()
model.layers = torch.nn.ModuleList([torch.nn.Linear(64, 64)])
mesh = torch.distributed.init_device_mesh("cpu", (1, 1), mesh_dim_names=("between", "inside"))
""",
    ("docs/migrate.md", 0): """
import torch
from lowtide.compat import bitsandbytes as before
model = torch.nn.Linear(64, 64)
opt = before.optim.PagedAdamW8bit(model.parameters(), lr=3e-4)
model(torch.randn(4, 64)).square().mean().backward()
opt.step()
torch.save(opt.bitsandbytes_state_dict(), "optimizer.pt")
""",
    ("docs/migrate.md", 1): """
import lowtide, torch
model = torch.nn.Linear(64, 64)
opt = lowtide.AdamW(model.parameters())
model(torch.randn(4, 64)).square().mean().backward()
opt.step()
torch.save(opt.state_dict(), "optimizer.pt")
""",
    ("docs/migrate.md", 2): """
import lowtide, schedulefree, torch
model = torch.nn.Linear(64, 64)
before = schedulefree.AdamWScheduleFree(model.parameters())
before.train()
model(torch.randn(4, 64)).square().mean().backward()
before.step()
before.eval()
torch.save(model.state_dict(), "model.pt")
torch.save(before.state_dict(), "optimizer.pt")
""",
}  # fmt: skip

# Fragments that other tests run in their frameworks or on an emulated device.
RUN_ELSEWHERE = {
    ("docs/offload.md", 0): "devices/test_host_steps.py",
    ("docs/gpu.md", 2): "devices/test_cuda.py",
    ("docs/hugging-face.md", 0): "examples/test_hf_examples.py",
    **{("docs/hugging-face.md", number): "optimizers/test_clipping_frameworks.py" for number in (1, 2)},
    ("docs/hugging-face.md", 3): "frameworks/test_lightning.py",
    **{("docs/frameworks.md", number): "frameworks/test_frameworks.py" for number in (0, 1, 2, 3, 4, 5, 7, 8)},
    ("docs/frameworks.md", 6): "frameworks/test_deepspeed.py",
    **{("docs/frameworks.md", number): "frameworks/test_diffusion.py" for number in (9, 10, 11)},
}

CPP_PRELUDES = {
    ("docs/project/votes.md", "cpp"): """
#include "lowtide/sign.h"
#include <vector>
void vote(const float* gradient, int64_t n, std::span<const std::byte* const> ballots, uint64_t run, uint64_t step,
          const float* device_gradient, std::byte* device_bits, void* stream) {
BLOCK
}
""",
    ("docs/cpp.md", "c"): """
#include <lowtide/lowtide.h>
#include <lowtide/lowtide_device.h>
#include <stddef.h>
void train(lt_optimizer* optimizer, const lt_gradient* gradients, float* host_weight, int64_t bytes) {
BLOCK
}
""",
}
