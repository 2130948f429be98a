// Writes launches of steps for tools/step_model.py: lowtide_cuda_launches FOLDER [PART]
// The shipped host code launches each configuration once, the PTX executor runs it, and FOLDER gets NUMBER.txt, which
// says what was launched, and NUMBER.bin, the memory that the kernel reached before and what it had to leave there.
// PART: those configurations alone whose names have it. A step is of one tile, and comes after others on the CPU, so
// that its states have the values of a training.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/host/cuda_backend.h"
#include "configurations.h"
#include "cuda/step_cases.h"
#include "runtime.h"

namespace lowtide {
namespace {

using namespace lowtide::testing;

constexpr int kStepsBefore = 24;
const char* const kTypes[] = {"f32", "bf16", "f16"};

// Memory that a kernel may reach: what its parameters point to, and what that points to.
class Reachable {
 public:
  explicit Reachable(const ptx::Find& find) : find_(find) {}
  void scan(const std::byte* words, size_t bytes) {
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
      uint64_t word;
      std::memcpy(&word, words + i, 8);
      const ptx::Range range = word ? find_(word) : ptx::Range{};
      if (range.end && seen_.insert(range.begin).second) {
        ranges.push_back(range);
        scan(reinterpret_cast<const std::byte*>(range.begin), range.end - range.begin);
      }
    }
  }
  std::vector<ptx::Range> ranges;

 private:
  const ptx::Find& find_;
  std::set<uint64_t> seen_;
};

// One configuration's files.
class Record {
 public:
  Record(const std::filesystem::path& folder, size_t number)
      : text_(folder / (std::to_string(number) + ".txt")), bytes_(folder / (std::to_string(number) + ".bin")) {}

  std::ostream& text() { return text_; }
  void add(const char* what, uint64_t begin, uint64_t end) {
    text_ << what << " " << begin << " " << end - begin << " " << at_ << "\n";
    bytes_.write(reinterpret_cast<const char*>(begin), static_cast<std::streamsize>(end - begin));
    at_ += end - begin;
  }
  void add(const ptx::Launched& launched) {
    text_ << "kernel " << launched.kernel << "\nblocks " << launched.blocks << "\nthreads " << launched.threads
          << "\ndynamic_bytes " << launched.dynamic_bytes << "\nparameters ";
    for (const std::byte byte : launched.parameters) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(byte));
      text_ << digits;
    }
    text_ << "\n";
    Reachable memory(launched.find);
    memory.scan(launched.parameters.data(), launched.parameters.size());
    for (const ptx::Range& range : memory.ranges) add("memory", range.begin, range.end);
  }

 private:
  std::ofstream text_, bytes_;
  uint64_t at_ = 0;
};

// Gradients of elements whose scales differ, some of them zero.
void draw_gradients(StepCase& c, const std::vector<double>& scales, Rng& rng) {
  for (size_t i = 0; i < scales.size(); ++i)
    put(c.grad, c.grad_dtype, static_cast<int64_t>(i), rng.chance(0.01) ? 0 : scales[i] * rng.normal());
}

StepCase trained(const Configuration& as, Rng& rng) {
  StepCase c(as.rule, as.codec, as.param, as.grad, as.rows, as.row_length, rng);
  c.lr = 1e-3;
  c.origin = {};
  for (int64_t i = 0; i < c.layout.numel; ++i) put(c.param, c.param_dtype, i, 0.02 * rng.normal());
  for (int k = 0; k < rule_info(as.rule).states; ++k) {
    std::fill(c.codes[k].begin(), c.codes[k].end(), std::byte{format_of(as.rule, as.codec, k).zero});
    std::fill(c.scales[k].begin(), c.scales[k].end(), 0.f);
  }
  if (as.master) c.set_master(as.master, rng), std::fill(c.residual.begin(), c.residual.end(), std::byte{});
  RuleInput hyper;
  hyper.beta1 = 0.9, hyper.beta2 = 0.999, hyper.beta3 = 0.9999, hyper.momentum = 0.9, hyper.alpha = 0.99;
  c.stochastic = stochastic_states(as.rule, as.codec, as.rounding, hyper);
  std::vector<double> scales(static_cast<size_t>(c.layout.numel));
  for (double& scale : scales) scale = 1e-3 * std::exp(rng.normal());
  std::vector<StepCase> one;
  one.push_back(std::move(c));
  const auto cpu = cpu::make_backend("");
  for (int t = 1; t <= kStepsBefore; ++t) {
    draw_gradients(one[0], scales, rng);
    one[0].set_step(t, t == 1);
    step_all(*cpu, one, 1);
  }
  draw_gradients(one[0], scales, rng);
  one[0].set_step(kStepsBefore + 1);
  return std::move(one[0]);
}

int64_t moved_bytes(const Configuration& as, const StepCase& c) {
  const auto grad = static_cast<int64_t>(c.grad.size()), param = static_cast<int64_t>(c.param.size());
  switch (as.pass) {
    case Pass::kNorms:
      return rule_info(as.rule).norms_read_state ? c.bytes() + grad : param + grad;
    case Pass::kSearch:
      return grad;
    default:
      return 2 * c.bytes() + grad;
  }
}

void write(const Configuration& as, Backend& cuda, Record record) {
  Rng rng(19);
  StepCase c = trained(as, rng);
  DeviceCase there(c, static_cast<size_t>(as.shift), false);
  const Shared residual(c.residual.data(), c.residual.size());
  StepItem item = there.item();
  if (!c.residual.empty()) item.master.residual = residual.get();
  const bool steps = as.pass == Pass::kStep;
  record.text() << "rule " << (as.pass == Pass::kSearch ? "any" : rule_info(as.rule).name) << "\ncodec "
                << codec_info(as.codec).name << "\ntypes " << kTypes[static_cast<int>(as.param)] << ","
                << kTypes[static_cast<int>(as.grad)] << "\nmaster " << (as.master ? master_info(as.master).name : "-")
                << "\narithmetic " << cuda.target() << "\nstochastic " << c.stochastic << "\nwhat " << as.what
                << "\nelements " << c.layout.numel << "\nbytes " << moved_bytes(as, c) << "\n";
  const char* const kernel = steps ? "step_kernel" : as.pass == Pass::kNorms ? "norms_kernel" : "nonfinite_kernel";
  ptx::observe([&](const ptx::Launched& launched) {
    if (launched.kernel.find(kernel) != std::string::npos) record.add(launched);
  });
  if (steps) {
    cuda.step({&item, 1}, 1, false, nullptr);
  } else if (as.pass == Pass::kNorms) {
    std::vector<BlockNorms> norms(static_cast<size_t>(c.layout.blocks(kBlockElements)));
    cuda.norms({&item, 1}, 1, norms, nullptr);
  } else {
    cuda.first_nonfinite({&item, 1}, 1, nullptr);
  }
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  ptx::observe({});
  const auto add_result = [&](const std::byte* data, size_t bytes) {
    const auto begin = reinterpret_cast<uint64_t>(data);
    if (bytes) record.add("result", begin, begin + bytes);
  };
  add_result(there.param.data(), c.param.size());
  add_result(there.states->get(), there.state_bytes);
  add_result(residual.get(), c.residual.size());
}

int run(const std::filesystem::path& folder, const std::string& part) {
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  size_t number = 0;
  for (const bool fast : {false, true}) {
    const auto cuda = cuda_host::make_backend(fast ? "fast" : "exact", nullptr);
    for (const Configuration& as : configurations())
      if (part.empty() || as.name().find(part) != std::string::npos) write(as, *cuda, Record(folder, number++));
  }
  std::printf("%zu launches\n", number);
  return number ? 0 : 1;
}

}  // namespace
}  // namespace lowtide

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "got no folder, wanted: lowtide_cuda_launches FOLDER [PART]\n");
    return 2;
  }
  try {
    return lowtide::run(arguments[1], count > 2 ? arguments[2] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lowtide_cuda_launches: %s\n", error.what());
    return 1;
  }
}
