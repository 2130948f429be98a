// Runs every combination ("cell") of rule with options, state format, rounding, element types and master in one
// optimizer, so that each place of state and computation can be compared with another.
#pragma once

#include "backend/backend.h"
#include "backend/catalog.h"
#include "optim/hyper.h"
#include "support/optimizer_case.h"
#include "support/tested_rules.h"
#include "support/test.h"

namespace lowtide::testing {

struct MatrixCell {
  GroupOptions group;   // for one parameter
  std::string options;  // the rule's options that are set
  DType param, grad;

  std::string name() const {
    const auto type = [](DType of) {
      return std::string(of == DType::kF32 ? "f32" : of == DType::kBF16 ? "bf16" : "f16");
    };
    return group.rule + "(" + options + ") " + group.state + " " + group.rounding + " " + type(param) + "/" +
           type(grad) + " '" + group.master + "'";
  }
  // A refusal must name something of the cell that its user can change.
  bool is_named_in(const std::string& message) const {
    const auto has = [&](const std::string& word) { return !word.empty() && message.find(word) != std::string::npos; };
    return has(group.rule) || has("'" + group.state + "'") || has("'" + group.rounding + "'") ||
           has("'" + group.master + "'");
  }
};

// Returns one set of options for each different computation or refusal of a rule.
inline std::vector<std::pair<Hyper, std::string>> rule_options(const std::string& rule) {
  struct Option {
    const char* name;
    void (*set)(Hyper&);
  };
  constexpr Option kOptions[] = {
      {"momentum", [](Hyper& h) { h.momentum = 0.9; }},    {"nesterov", [](Hyper& h) { h.nesterov = true; }},
      {"amsgrad", [](Hyper& h) { h.amsgrad = true; }},     {"centered", [](Hyper& h) { h.centered = true; }},
      {"max_unorm", [](Hyper& h) { h.max_unorm = 0.05; }},
  };
  std::vector<std::pair<Hyper, std::string>> out;
  std::set<std::string> seen;  // the outcomes: the rule whose arguments it gets, or a refusal
  for (unsigned set = 0; set < 1u << std::size(kOptions); ++set) {
    Hyper hyper = default_hyper(rule);
    hyper.lr = 0.01, hyper.momentum = 0, hyper.trust_coefficient = 0.1, hyper.d0 = 1;  // moves 16-bit weights
    std::string names, becomes;
    for (size_t i = 0; i < std::size(kOptions); ++i)
      if (set >> i & 1) kOptions[i].set(hyper), names += (names.empty() ? "" : " ") + std::string(kOptions[i].name);
    try {
      check_hyper(find_rule(rule), hyper);
      const int effective = effective_rule(find_rule(rule), hyper);
      RuleInput input = rule_input(hyper, 3, false);
      input.norm[0] = 2, input.norm[1] = 3;
      char args[kArgsBytes] = {};
      rule_info(effective).make_args(input, args);
      becomes = std::to_string(effective) + std::string(args, sizeof args);
    } catch (const Error& error) {
      becomes = error.what();
    }
    if (seen.insert(becomes).second) out.emplace_back(hyper, names);
  }
  return out;
}

// Returns all cells of the tested rules, or an evenly spread share.
inline std::vector<MatrixCell> matrix_cells() {
  std::vector<MatrixCell> cells;
  int64_t grid = 0;
  for (const std::string& rule : rule_names())
    for (const auto& [hyper, options] : rule_options(rule)) {
      if (!is_tested(effective_rule(find_rule(rule), hyper))) continue;
      for (const std::string& codec : codec_names())
        for (const char* rounding : {"auto", "nearest", "stochastic"})
          for (const DType param : kDTypes)
            for (const DType grad : kDTypes)
              for (const MasterInfo& master : masters()) {
                if (*master.name && param == DType::kF32) continue;  // has nothing to make more precise
                if (!in_share(grid++)) continue;
                MatrixCell& cell = cells.emplace_back();
                cell.options = options, cell.param = param, cell.grad = grad;
                cell.group.hyper = hyper, cell.group.state = codec, cell.group.rounding = rounding;
                cell.group.master = master.name, cell.group.rule = rule;
                cell.group.min_quantized_numel = 0;
              }
    }
  return cells;
}

// Steps the parameters of the cells with one optimizer, on `device` if given. A cell has the same number in all runs.
class MatrixRun {
 public:
  static constexpr int kSteps = 3;
  static constexpr int64_t kRows = 2, kColumns = 302,
                           kCount = kRows * kColumns;  // a block of 256 and a partial one; even, for 4-bit formats

  // only: takes only the cells with this rounding.
  MatrixRun(const std::vector<MatrixCell>& cells, Optimizer optimizer, Device* device = nullptr,
            const std::string& only = "")
      : cells_(cells), optimizer_(std::move(optimizer)), device_(device) {
    Rng rng(7);
    for (int64_t i = 0; i < kCount; ++i) start_.push_back(rng.over_binades(-6, 0));
    for (int step = 0; step < kSteps; ++step)
      for (const DType dtype : kDTypes) {
        Rng values(70 + static_cast<uint64_t>(step));
        Tensor& grad = grads_.emplace_back(dtype, std::vector<int64_t>{kRows, kColumns});
        for (int64_t i = 0; i < kCount; ++i) grad.set(i, values.chance(0.05) ? 0 : values.over_binades(-9, 0));
      }
    host_.resize(cells.size() * kStride);
    for (size_t i = 0; i < cells.size(); ++i) {
      Tensor param = started(cells[i].param);
      std::memcpy(&host_[i * kStride], param.data.data(), param.data.size());
    }
    if (device_) {
      queue_ = device_->make_queue();
      memory_ =
          DeviceBytes(*device_, MemoryKind::kDevice, static_cast<int64_t>((cells.size() + grads_.size()) * kStride));
      copy(memory_.data(), host_.data(), host_.size());
      for (size_t i = 0; i < grads_.size(); ++i)
        copy(memory_.data() + (cells.size() + i) * kStride, grads_[i].data.data(), grads_[i].data.size());
    }
    const int none = optimizer_.add_group({});
    for (size_t i = 0; i < cells.size(); ++i) {
      std::byte* const data = (device_ ? memory_.data() : host_.data()) + i * kStride;
      left_out_.push_back(!only.empty() && cells[i].group.rounding != only);
      try {
        if (!left_out_[i])
          optimizer_.add_param(optimizer_.add_group(cells[i].group), {data, cells[i].param, {kRows, kColumns}, {}});
        refusals_.emplace_back();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << cells[i].name() << ": " << error.what();
        unnamed_ += !cells[i].is_named_in(error.what());
        refusals_.emplace_back(error.what());
      }
      if (!runs(i)) optimizer_.add_param(none, {nullptr, DType::kF32, {0}, {}});  // keeps the numbers of later cells
    }
  }

  void run() {
    StepOptions options{.stream = queue_};
    for (size_t step = 0; step < kSteps; ++step) {
      std::vector<Gradient> grads;
      for (size_t i = 0; i < cells_.size(); ++i) {
        const size_t at = step * std::size(kDTypes) + static_cast<size_t>(cells_[i].grad);
        const void* const data = device_ ? memory_.data() + (cells_.size() + at) * kStride : grads_[at].data.data();
        grads.push_back(runs(i) ? Gradient{data, cells_[i].grad, nullptr} : Gradient{});
      }
      optimizer_.step(grads, options);
    }
    optimizer_.synchronize();
    if (device_) copy(host_.data(), memory_.data(), host_.size());
  }

  bool runs(size_t cell) const { return refusals_[cell].empty() && !left_out_[cell]; }
  bool left_out(size_t cell) const { return left_out_[cell]; }
  const std::string& refusal(size_t cell) const { return refusals_[cell]; }
  // Returns a cell's parameter, step count and stored state.
  std::vector<std::byte> bytes(size_t cell) const {
    std::vector<std::byte> out(static_cast<size_t>(kCount * dtype_bytes(cells_[cell].param)));
    std::memcpy(out.data(), &host_[cell * kStride], out.size());
    const auto append = [&out](const void* data, size_t bytes) {
      out.insert(out.end(), static_cast<const std::byte*>(data), static_cast<const std::byte*>(data) + bytes);
    };
    const auto number = static_cast<int64_t>(cell);
    const int64_t steps = optimizer_.steps(number);
    append(&steps, sizeof steps);
    int k = 0;
    for (const StateView& state : optimizer_.state(number)) {
      std::vector<std::byte> codes(static_cast<size_t>((state.numel * state.code_bits + 7) / 8));
      std::vector<float> scales(static_cast<size_t>(state.rows * state.scales_per_row));
      optimizer_.read_state(number, k++, codes.data(), scales.data());
      append(codes.data(), codes.size());
      append(scales.data(), scales.size() * sizeof(float));
    }
    return out;
  }
  // Returns true if the parameter has moved and is finite, and its state has the requested format.
  bool is_sound(size_t cell) const {
    const MatrixCell& of = cells_[cell];
    const std::byte* const now = &host_[cell * kStride];
    const Tensor before = started(of.param);
    for (int64_t i = 0; i < kCount; ++i)
      if (!std::isfinite(element(now, of.param, i))) return false;
    const auto number = static_cast<int64_t>(cell);
    return differing_bytes(now, before.data.data(), static_cast<int64_t>(before.data.size())) > 0 &&
           optimizer_.state_codec(number) == of.group.state;
  }
  // The number of refusals that name nothing of their cell.
  int64_t unnamed() const { return unnamed_; }
  const Optimizer& optimizer() const { return optimizer_; }

 private:
  static constexpr size_t kStride = 2560;  // bytes from one tensor to the next

  Tensor started(DType dtype) const {
    Tensor param(dtype, {kRows, kColumns});
    for (int64_t i = 0; i < kCount; ++i) param.set(i, start_[static_cast<size_t>(i)]);
    return param;
  }
  void copy(void* to, const void* from, size_t bytes) {
    device_->copy(queue_, to, from, static_cast<int64_t>(bytes));
    device_->host_wait(device_->record(queue_));
  }

  const std::vector<MatrixCell>& cells_;
  Optimizer optimizer_;
  Device* device_;
  void* queue_ = nullptr;
  std::vector<double> start_;
  std::vector<Tensor> grads_;  // for each step and element type
  std::vector<std::byte> host_;
  DeviceBytes memory_;
  std::vector<std::string> refusals_;
  std::vector<bool> left_out_;
  int64_t unnamed_ = 0;
};

// Counts the outcomes of cells, tier by tier.
struct MatrixCounts {
  int64_t cells = 0, correct = 0, refused = 0, differing = 0, unsound = 0;
  std::map<std::string, int64_t> refusals;

  // Compares the bits of the cells of `got` with `wanted`.
  void compare(const std::vector<MatrixCell>& all, const MatrixRun& got, const MatrixRun& wanted,
               const std::string& where) {
    EXPECT_EQ(got.unnamed(), 0) << where << ": refusals must say what of their cell cannot be";
    for (size_t i = 0; i < all.size(); ++i) {
      if (got.left_out(i)) continue;
      ++cells;
      if (!got.refusal(i).empty()) {
        ++refused, ++refusals[got.refusal(i)];
        continue;
      }
      const bool same = wanted.runs(i) && got.bytes(i) == wanted.bytes(i), sound = got.is_sound(i);
      correct += same && sound, differing += !same, unsound += !sound;
      if ((!same || !sound) && differing + unsound <= 20)
        ADD_FAILURE() << where << ": " << all[i].name()
                      << (same ? " did not move, is not finite or has another format" : " differs");
    }
  }
  // Counts a tier that `make` refuses for all cells, with a message that names `word`.
  template <class Make>
  void refuse(const std::vector<MatrixCell>& all, const std::string& word, Make&& make) {
    const std::string message = refusal(make);
    EXPECT_NE(message.find(word), std::string::npos) << "wanted '" << word << "' in: " << message;
    const auto count = static_cast<int64_t>(all.size());
    cells += count, refused += count, refusals[message] += count;
  }
  // Prints a backend's outcomes. places: the number of tiers and instruction sets.
  void print(const char* backend, const std::vector<MatrixCell>& all, int places) const {
    size_t variants = 0;
    for (const std::string& rule : rule_names()) variants += rule_options(rule).size();
    figure(
        "{}: {} rules and options x {} formats x 3 roundings x 9 pairs of types x {} masters of 16-bit weights: {} "
        "cells, in {} places {}: {} correct, {} refused by name, {} differ, {} unsound",
        backend, variants, codecs().size(), masters().size(), all.size(), places, cells, correct, refused, differing,
        unsound);
    for (const auto& [message, count] : refusals) figure("  {}: {}", count, message);
  }
};

}  // namespace lowtide::testing
