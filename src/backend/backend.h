// The operations of a backend. Kernels see pointers and counts, never memory tiers. The optimizer checks every argument
// first; an implementation checks only what it alone can know, such as whether there is a device or enough memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/device.h"
#include "backend/limits.h"
#include "backend/norms.h"
#include "backend/signs.h"
#include "core/layout.h"
#include "lowtide/tensor.h"

namespace lowtide {

// The destination of a step that makes signs instead of changing the parameter: the signs of what the update would make
// of zeros. `first` is the index of the parameter's first sign, a multiple of kSignAlignment. `bits` and `presence`
// (backend/signs.h) are laid out as by packing and must be zero before the step, because a step of a part of the
// parameter sets only that part's bits.
struct BallotTarget {
  std::byte* bits = nullptr;
  std::byte* presence = nullptr;
  int64_t first = 0;
  bool zero_is_plus = true;
};

struct StepItem;
struct Hyper;
struct TermSums;  // backend/term_sums.h
namespace kernels {
struct NormSums;  // backend/kernels/sums.h
}

// A queued check for non-finite gradients. Nobody waits for it: steps that depend on it do nothing if it finds one.
class Guard {
 public:
  virtual ~Guard() = default;
  // Waits for the result and returns the index of the first bad item, or -1 if there is none.
  virtual int64_t first() = 0;
  // Returns the result in device memory, for kernels: kernels::kNoItem or the index of the first bad item.
  virtual const uint32_t* word() const = 0;
};

// A step that was recorded on a capturing queue (Device::is_capturing) and runs when the recording is replayed.
class RecordedStep {
 public:
  virtual ~RecordedStep() = default;
  // Queues on `stream` the input of the next replay on that stream: the same items, with the args, scales and keys of
  // the step that the replay will take. A replay without this input changes nothing. Throws the refusals of replays.h
  // that are known without waiting.
  virtual void prepare(std::span<const StepItem> items, void* stream) = 0;
  // Returns true if every replay since the last call was prepared. Waits for the replays queued on the stream of the
  // last prepare().
  virtual bool all_prepared() = 0;
  // Returns true if a replay has used the last preparation or if there was none. Waits like all_prepared().
  virtual bool was_replayed() = 0;
};

// How 16-bit weights get more precision (portable/master.h).
struct MasterWeights {
  int kind = 0;              // a number of masters.def; 0 for none
  void* residual = nullptr;  // [elements of the part], contiguous; nullptr if the kind has none
  uint32_t key[2] = {};      // for stochastic rounding
};

// The position of a parameter in the whole tensor of which it may be a shard. Random bits depend on an element's index
// in the whole tensor: element (row, column) has index (first_row + row) * row_stride + first_column + column.
struct ShardOrigin {
  int64_t first_row = 0, first_column = 0;  // with scaled codecs, first_column is a multiple of a block
  int64_t row_stride = 0;                   // a row of the whole, in whole blocks; 0 for the parameter's own rows

  int64_t stride(int64_t row_length) const {
    return row_stride ? row_stride : blocks_per_row(row_length, kBlockElements) * kBlockElements;
  }
};

// One parameter in one step. Owns nothing; all pointers are borrowed for the call.
struct StepItem {
  void* param = nullptr;
  const void* grad = nullptr;
  const Layout* param_layout = nullptr;
  const Layout* grad_layout = nullptr;
  DType param_dtype = DType::kF32, grad_dtype = DType::kF32;
  int rule = 0, codec = 0;     // numbers of rules.def and codecs.def
  float grad_scale = 1.f;      // multiplies every gradient (loss scale, maximize)
  const void* args = nullptr;  // the rule's Args
  // The part of the parameter to step, in blocks counted row by row; -1 means up to the end. Codes and scales begin at
  // the part's first block.
  int64_t first_block = 0, blocks = -1;
  void* codes[kMaxStates] = {};    // [elements of the part], contiguous
  float* scales[kMaxStates] = {};  // [blocks], nullptr if the codec has none
  // The offset in bytes from the place where codes, scales and the residual are read to the place where they are
  // written. It is 0 in place; otherwise they are written to another chunk.
  int64_t write_offset = 0;
  Guard* guard = nullptr;   // made by this backend for this step and queue
  uint32_t stochastic = 0;  // bit k: state k is rounded stochastically with key[k]
  uint32_t key[kMaxStates][2] = {};
  ShardOrigin origin;
  MasterWeights master;  // its residual is read and written like codes
  // If not nullptr, the step makes signs and neither reads nor writes the parameter (`param` may be nullptr). With lr =
  // -1 and no decay in args, these are the signs of the rule's direction.
  const BallotTarget* ballot = nullptr;
  // The sums of the whole parameter, from Backend::norm_sums(), or nullptr. The device computes norms from them and
  // puts the norms into the arguments, with these hyper-parameters. With `adds_norms`, the step first adds the item's
  // blocks to the sums.
  kernels::NormSums* norms = nullptr;
  const Hyper* hyper = nullptr;
  bool adds_norms = false;
};

// The elements of one state of a parameter, or of a part of it, both encoded and as packed row-major floats.
struct CodecItem {
  int codec = 0;
  bool is_signed = true;
  int64_t rows = 0, row_length = 0;
  int64_t first_block = 0, blocks = -1;  // as in StepItem; codes, scales and values begin at the first block
  void* codes = nullptr;
  float* scales = nullptr;
  float* values = nullptr;
};

// Returns true if a step joins the item's weights with their residuals and splits them again.
inline bool has_master(const StepItem& item) {
  return item.master.kind && !item.ballot && item.param_dtype != DType::kF32;
}

class GradientReader;  // backend/gradient_reader.h

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  // targets() returns the kernel variants that can run here, best first, and target() the one in use, which is the best
  // unless another was chosen.
  virtual std::vector<std::string> targets() const = 0;
  virtual const char* target() const = 0;
  // Returns the device of parameters, gradients and codes, or nullptr if they are in host memory.
  virtual Device* device() { return nullptr; }
  // Returns the reader for norms of gradients in device memory, or nullptr if unsupported.
  virtual GradientReader* gradient_reader() { return nullptr; }

  // Steps all items, ordered on `stream`. Items of one call must not share memory unless `ordered` is true, which runs
  // them in the given order on one thread.
  virtual void step(std::span<const StepItem> items, int threads, bool ordered, void* stream) = 0;
  // Computes the sums from which norms of whole parameters are made, for items whose rules need norms
  // (RuleInfo::norms): one for each block, item after item. Changes nothing, and reads states only if the rule needs
  // them (RuleInfo::norms_read_state). Synchronous. For backends without norm_sums().
  virtual void norms(std::span<const StepItem> items, int threads, std::span<BlockNorms> out, void* stream);
  // Adds the terms of the items, whose rules have sums (RuleInfo::sums). Reads gradients and states. Synchronous.
  // Throws kUnsupported for a backend without them.
  virtual void sum_terms(std::span<const StepItem> items, int threads, TermSums& to, void* stream);
  // Returns device memory for the sums of norms of `count` parameters. The memory lives as long as the backend and may
  // be copied like any other; zeros begin a sum. Returns nullptr if unsupported; then call norms().
  virtual kernels::NormSums* norm_sums(int64_t /*count*/) { return nullptr; }
  // Adds the sums that norms() computes to StepItem::norms of items whose adds_norms is set. Ordered on `stream`.
  virtual void add_norms(std::span<const StepItem> items, void* stream);
  // Returns the index of the first item with a gradient that is not finite (or of magnitude 2^62 or more), or -1 if
  // there is none. Synchronous.
  virtual int64_t first_nonfinite(std::span<const StepItem> items, int threads, void* stream) = 0;
  // Queues the check of first_nonfinite() and returns its Guard, or nullptr if unsupported; then call
  // first_nonfinite(). On a capturing queue the check is recorded, and each replay checks with the scales of the step
  // that was prepared for it.
  virtual std::shared_ptr<Guard> queue_guard(std::span<const StepItem> /*items*/, void* /*stream*/) { return nullptr; }
  // Records a step of these items on a capturing queue. Throws kUnsupported if queues cannot capture.
  virtual std::shared_ptr<RecordedStep> record_step(std::span<const StepItem> items, bool ordered, void* stream);
  // Decode codes to values, and encode values to codes, in the blocks of a step. Synchronous.
  virtual void decode(const CodecItem& item, void* stream) = 0;
  virtual void encode(const CodecItem& item, void* stream) = 0;

  // Pack signs to bits, unpack bits to +1, -1 and 0, compute majorities and counts of votes, step by signs, and do
  // error feedback (backend/signs.h). Items of one call must not share bytes that one of them writes. Ordered on
  // `stream`. Throw kInvalidArgument for inconsistent items.
  virtual void pack_signs(std::span<const SignItem> items, int threads, void* stream) = 0;
  virtual void unpack_signs(std::span<const SignItem> items, int threads, void* stream) = 0;
  virtual void vote_signs(const VoteItem& item, int threads, void* stream) = 0;
  virtual void count_signs(const CountItem& item, int threads, void* stream) = 0;
  virtual void apply_signs(std::span<const ApplyItem> items, int threads, void* stream) = 0;
  virtual void feedback(std::span<const FeedbackItem> items, int threads, void* stream) = 0;
  // Process one item on the calling thread.
  void pack_signs(const SignItem& item, void* stream) { pack_signs({&item, 1}, 1, stream); }
  void unpack_signs(const SignItem& item, void* stream) { unpack_signs({&item, 1}, 1, stream); }
};

}  // namespace lowtide
