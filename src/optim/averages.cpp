// Moves weights between training and evaluation, for rules that evaluate weights other than those they train
// (Schedule-Free). The first state holds the difference.
#include <algorithm>
#include <optional>
#include <vector>

#include "optim/hyper.h"
#include "optim/optimizer_impl.h"
#include "optim/state_parts.h"

namespace lowtide {
namespace {

constexpr int64_t kAtOnce = int64_t{1} << 18;       // elements
constexpr uint64_t kOwnBits = 0x9e3779b97f4a7c15u;  // sets this file's random bits apart from a step's

// The number of switches of a parameter's weights since its last step.
double& switches_of(Parameter& param) { return param.carried.of[rule_info(param.rule).switches]; }
// Before the first step a switch rounds nothing, with or without state.
void note_switch(Parameter& param) {
  if (param.steps > 0) switches_of(param) += 1;
}

// Memory that the parameters' backend can access: host memory, or a copy on the device.
class Reached {
 public:
  Reached(const ParamTable& table, int64_t bytes, void* stream) : on_(table.on), stream_(stream) {
    if (on_.device)
      there_ = DeviceBytes(*on_.device, MemoryKind::kDevice, std::max<int64_t>(bytes, 1));
    else
      here_.resize(static_cast<size_t>(bytes));
  }
  ~Reached() {  // even after an exception: queued work still uses the memory
    try {
      wait();
    } catch (...) {  // a lost device uses no memory
    }
  }
  Reached(const Reached&) = delete;
  Reached& operator=(const Reached&) = delete;

  std::byte* data() { return on_.device ? there_.data() : here_.data(); }
  void copy_in(const void* from, int64_t bytes) { on_.copy(data(), from, bytes, stream_); }
  void copy_out(void* to, int64_t bytes) { on_.copy(to, data(), bytes, stream_); }
  // Waits for all queued work.
  void wait() {
    if (on_.device) on_.device->host_wait(on_.device->record(stream_));
  }

 private:
  const Backends& on_;
  void* stream_;
  DeviceBytes there_;
  std::vector<std::byte> here_;
};

// Moves one parameter, slice by slice.
class Move {
 public:
  Move(ParamTable& table, int64_t number, bool evaluating, void* stream)
      : table_(table), param_(table.at(number)), number_(number), evaluating_(evaluating), stream_(stream) {
    RuleInput in = rule_input(table.group_of(param_).hyper, param_.steps, false);
    if (!evaluating && param_.evaluating_beta1 > 0) in.beta1 = param_.evaluating_beta1;  // undo with the same beta1
    beta1_ = in.beta1;
    rule_info(param_.rule).make_average_args(in, evaluating, args_);
    item_.param = param_.data, item_.param_dtype = param_.dtype, item_.param_layout = &param_.layout;
    item_.grad_layout = &param_.shape;
    item_.rule = param_.rule, item_.codec = find_codec("fp32");
    item_.grad_scale = 0;
    item_.args = args_;
    item_.origin = param_.origin;
    item_.master.kind = param_.master;
    // Each switch draws its own random bits, even when several fall between two steps: with equal bits, pairs of
    // switches would push every weight in one direction.
    if (param_.master)
      set_keys(table.seed ^ (kOwnBits + static_cast<uint64_t>(switches_of(param_))), param_.steps, number, item_);
    item_.stochastic = 0;
  }

  void take() {
    if (param_.paged)
      take_paged();
    else
      take_resident();
  }

 private:
  // A range of the parameter's blocks and their elements.
  struct Slice {
    int64_t block, blocks, begin, count;
  };

  void take_resident() {
    const int residual = param_.states(param_.state_rule);  // its array follows the states, if it exists
    const StateFormat format = param_.format(param_.state_rule, 0);
    for_each_slice([&](const Slice& slice, Reached& state, StepItem& item) {
      CodecItem codes;
      codes.codec = param_.codec;
      codes.is_signed = param_.is_signed(param_.state_rule, 0);
      codes.rows = param_.layout.rows, codes.row_length = param_.layout.row_length;
      codes.first_block = slice.block, codes.blocks = slice.blocks;
      codes.codes = static_cast<std::byte*>(param_.codes[0]) + format.code_bytes(slice.begin);
      codes.scales = format.scales ? param_.scales[0] + slice.block * format.scales : nullptr;
      codes.values = reinterpret_cast<float*>(state.data());
      table_.on.host->decode(codes, nullptr);
      if (param_.has_residual())
        item.master.residual =
            static_cast<std::byte*>(param_.codes[residual]) + residual_bytes(param_.master, slice.begin);
      table_.on.at_params.step({&item, 1}, table_.on.threads, false, stream_);
    });
  }

  // Everything that can fail, except writing a residual, runs before any weight moves.
  void take_paged() {
    const int residual = param_.states(param_.state_rule);
    const auto bytes_of = [&](int64_t elements) { return residual_bytes(param_.master, elements); };
    std::vector<float> values(static_cast<size_t>(param_.layout.numel));
    for_each_part(table_, number_, 0, false, [&](CodecItem item, int64_t first, int64_t) {
      item.values = values.data() + first;
      table_.on.host->decode(item, nullptr);
    });
    std::vector<std::byte> rest(static_cast<size_t>(bytes_of(param_.layout.numel)));
    if (param_.has_residual())
      for_each_part(table_, number_, residual, false, [&](const CodecItem& item, int64_t first, int64_t elements) {
        copy_bytes(rest.data() + bytes_of(first), item.codes, bytes_of(elements));
      });
    Reached master(table_, bytes_of(std::min(kAtOnce, param_.layout.numel)), stream_);
    for_each_slice([&](const Slice& slice, Reached& state, StepItem& item) {
      state.copy_in(values.data() + slice.begin, slice.count * int64_t{sizeof(float)});
      std::byte* const of_slice = rest.data() + bytes_of(slice.begin);
      master.copy_in(of_slice, bytes_of(slice.count));
      if (param_.has_residual()) item.master.residual = master.data();
      table_.on.at_params.step({&item, 1}, table_.on.threads, false, stream_);
      master.copy_out(of_slice, bytes_of(slice.count));
    });
    if (!param_.has_residual()) return;
    // The weights have moved: a residual that was half written to a disk is refused until it is loaded again.
    for_each_part(table_, number_, residual, true, [&](const CodecItem& item, int64_t first, int64_t elements) {
      copy_bytes(item.codes, rest.data() + bytes_of(first), bytes_of(elements));
    });
  }

  // Calls take(slice, memory for its first state as floats, its step) for each slice. The step reads the first state
  // from that memory and zeros as the second.
  template <class Fn>
  void for_each_slice(Fn&& take) {
    const int64_t row = param_.layout.row_length, blocks = param_.layout.blocks(kBlockElements);
    const int64_t most = std::min(kAtOnce, param_.layout.numel) * int64_t{sizeof(float)};
    const std::vector<std::byte> zeros(static_cast<size_t>(most));
    Reached state(table_, most, stream_), second(table_, most, stream_);
    second.copy_in(zeros.data(), most);
    for (Slice slice{}; slice.block < blocks; slice.block += slice.blocks) {
      slice.blocks = std::min(blocks - slice.block, kAtOnce / kBlockElements);
      slice.begin = elements_before_block(row, slice.block, kBlockElements);
      slice.count = elements_before_block(row, slice.block + slice.blocks, kBlockElements) - slice.begin;
      StepItem item = item_;
      item.first_block = slice.block, item.blocks = slice.blocks;
      item.codes[0] = state.data(), item.codes[1] = second.data();
      // Gradients are the state times 0, addressed by position in the whole parameter.
      item.grad = reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(state.data()) -
                                                static_cast<uintptr_t>(slice.begin) * sizeof(float));
      take(slice, state, item);
    }
    state.wait();
    param_.note_moved(evaluating_, beta1_);
    note_switch(param_);
  }

  ParamTable& table_;
  Parameter& param_;
  const int64_t number_;
  const bool evaluating_;
  double beta1_;
  void* const stream_;
  alignas(16) std::byte args_[kArgsBytes];
  StepItem item_;
};

}  // namespace

void Optimizer::set_evaluating(bool evaluating, void* stream) {
  LT_REQUIRE(!stream || impl_->on_device, "got a stream for CPU parameters, wanted nullptr");
  ParamTable& table = impl_->table;
  const auto moves = [&](const Parameter& param) {
    return param.evaluating != evaluating && rule_info(param.rule).make_average_args;
  };
  {  // frameworks call this before every batch: if nothing moves, do not bring state back or wait
    const Impl::Call call(*impl_);
    if (std::none_of(table.params.begin(), table.params.end(), moves)) return;
  }
  const Impl::StateCall call(*impl_);
  if (impl_->on_device) impl_->on_device->synchronize();  // steps may have used another stream
  std::optional<StateChange> change;                      // for residuals; other state is unchanged
  for (size_t i = 0; i < table.params.size(); ++i) {
    Parameter& param = table.params[i];
    if (!moves(param)) continue;
    if (param.has_state && !param.uninitialized && param.layout.numel > 0) {
      if (param.has_residual() && !change) change.emplace(table);
      table.require_whole(param, i);
      Move(table, static_cast<int64_t>(i), evaluating, stream).take();
    } else {
      param.note_moved(evaluating, table.group_of(param).hyper.beta1);
      note_switch(param);  // as for shards with elements
    }
  }
  if (change) change->check_written();
}

bool Optimizer::evaluating(int64_t param) const { return impl_->table.at(param).evaluating; }

double Optimizer::evaluating_beta1(int64_t param) const { return impl_->table.at(param).evaluating_beta1; }

void Optimizer::mark_evaluating(int64_t param, bool evaluating, double beta1) {
  LT_REQUIRE(beta1 >= 0 && beta1 < 1, "got beta1=%g, wanted one in (0, 1), or 0 for the group's", beta1);
  const Impl::Call call(*impl_);
  Parameter& of = impl_->table.at(param);
  LT_REQUIRE(!evaluating || rule_info(of.rule).make_average_args,
             "got parameter %lld of rule '%s', which evaluates the weights that it trains, wanted schedulefree",
             ll(param), rule_info(of.rule).name);
  of.note_moved(evaluating, beta1 > 0 ? beta1 : impl_->table.group_of(of).hyper.beta1);
  if (evaluating && switches_of(of) == 0) note_switch(of);  // they were not counted: there was one at least
}

}  // namespace lowtide
