// The operations of a backend. Kernels see pointers and counts, never memory tiers. The optimizer checks every argument
// first; an implementation only checks what it alone can know (no device, no memory).
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

// The destination of the signs of a step, which replace the step itself: the signs of the parameter that the update
// would make from zeros. first: index of its first sign, a multiple of kSignAlignment. bits and presence
// (backend/signs.h) are laid out as by packing, and are zero before the step: a step of one part of the parameter only
// sets that part's bits.
struct BallotTarget {
  std::byte* bits = nullptr;
  std::byte* presence = nullptr;
  int64_t first = 0;
  bool zero_is_plus = true;
};

struct StepItem;
struct Hyper;
namespace kernels {
struct NormSums;  // backend/kernels/sums.h
}

// A queued check for non-finite gradients that nobody waits for. Steps that depend on it do nothing if it finds one.
class Guard {
 public:
  virtual ~Guard() = default;
  // Waits for the result: the index of the first bad item, -1 if there is none.
  virtual int64_t first() = 0;
  // The result in device memory, which kernels read: kernels::kNoItem, or that index.
  virtual const uint32_t* word() const = 0;
};

// A step that was recorded on a capturing queue (Device::is_capturing) and runs when the recording is replayed.
class RecordedStep {
 public:
  virtual ~RecordedStep() = default;
  // Queues, on `stream`, the input of the next replay there: the same items, with args, scales and keys of the step
  // that it will take. A replay without it changes nothing. Throws what replays.h lists, as far as it is known without
  // waiting.
  virtual void prepare(std::span<const StepItem> items, void* stream) = 0;
  // True if every replay since the last call was prepared. Waits for the replays queued on the stream of the last
  // prepare().
  virtual bool all_prepared() = 0;
  // True if a replay has used the last preparation, or there was none. Also waits.
  virtual bool was_replayed() = 0;
};

// How 16-bit weights are made more precise (portable/master.h).
struct MasterWeights {
  int kind = 0;              // a number of masters.def; 0: none
  void* residual = nullptr;  // [elements of the part], contiguous; nullptr if the kind has none
  uint32_t key[2] = {};      // for stochastic rounding
};

// The position of a parameter in the whole of which it may be a shard. Random bits depend on an element's index in the
// whole: element (row, column) has index (first_row + row) * row_stride + first_column + column.
struct ShardOrigin {
  int64_t first_row = 0, first_column = 0;  // with scaled codecs, columns are whole blocks
  int64_t row_stride = 0;                   // a row of the whole, rounded up to whole blocks; 0: a row of the parameter

  int64_t stride(int64_t row_length) const {
    return row_stride ? row_stride : blocks_per_row(row_length, kBlockElements) * kBlockElements;
  }
};

// One parameter in one step. All pointers are borrowed for the call; the item owns nothing.
struct StepItem {
  void* param = nullptr;
  const void* grad = nullptr;
  const Layout* param_layout = nullptr;
  const Layout* grad_layout = nullptr;
  DType param_dtype = DType::kF32, grad_dtype = DType::kF32;
  int rule = 0, codec = 0;     // numbers of rules.def and codecs.def
  float grad_scale = 1.f;      // multiplies every gradient (loss scale, maximize)
  const void* args = nullptr;  // the rule's Args
  // The part of the parameter to step, in blocks counted row by row; -1: to the end. Codes and scales begin at the
  // first block.
  int64_t first_block = 0, blocks = -1;
  void* codes[kMaxStates] = {};    // [elements of the part], contiguous
  float* scales[kMaxStates] = {};  // [blocks], nullptr if the codec has none
  // Offset in bytes from where codes, scales and the residual are read to where they are written: 0 in place, or to
  // another chunk.
  int64_t write_offset = 0;
  Guard* guard = nullptr;   // made by this backend for this step and queue
  uint32_t stochastic = 0;  // bit k: state k is rounded stochastically with key[k]
  uint32_t key[kMaxStates][2] = {};
  ShardOrigin origin;
  MasterWeights master;  // its residual is read and written like codes
  // Not nullptr: the parameter is neither read nor written (`param` may be nullptr), and signs are made. With args of
  // lr = -1 and no decay they are the signs of the rule's direction.
  const BallotTarget* ballot = nullptr;
  // Not nullptr: Backend::norm_sums() of the whole parameter, from which its norms go into the arguments on the device,
  // with these hyper-parameters. adds_norms: the step first adds the item's blocks to these sums.
  kernels::NormSums* norms = nullptr;
  const Hyper* hyper = nullptr;
  bool adds_norms = false;
};

// The elements of one state of one parameter, or of a part of it, encoded and as packed row-major floats.
struct CodecItem {
  int codec = 0;
  bool is_signed = true;
  int64_t rows = 0, row_length = 0;
  int64_t first_block = 0, blocks = -1;  // as in StepItem; codes, scales and values begin with the first block's
  void* codes = nullptr;
  float* scales = nullptr;
  float* values = nullptr;
};

// True if the item's weights are joined before its step and split after it.
inline bool has_master(const StepItem& item) {
  return item.master.kind && !item.ballot && item.param_dtype != DType::kF32;
}

class GradientReader;  // backend/gradient_reader.h

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  // The kernel variants that can run here, best first, and the one in use. Choosing none selects the best.
  virtual std::vector<std::string> targets() const = 0;
  virtual const char* target() const = 0;
  // For parameters, gradients and codes on a device; nullptr if they are in host memory.
  virtual Device* device() { return nullptr; }
  // For norms of gradients in device memory; nullptr if unsupported.
  virtual GradientReader* gradient_reader() { return nullptr; }

  // One step over all items; items of one call may share no memory unless `ordered`, which runs them one after another
  // in the given order on one thread. Ordered on `stream`.
  virtual void step(std::span<const StepItem> items, int threads, bool ordered, void* stream) = 0;
  // The sums from which norms of whole parameters are made, for items whose rules need them (RuleInfo::norms): one for
  // each block, item after item. Writes nothing of the items, and reads states only if the rule says so
  // (RuleInfo::norms_read_state). Synchronous. For backends without norm_sums().
  virtual void norms(std::span<const StepItem> items, int threads, std::span<BlockNorms> out, void* stream);
  // Device memory for the sums of norms of this many parameters. It lives as long as the backend and may be copied like
  // any other; zeros begin a sum. nullptr: unsupported; call norms() instead.
  virtual kernels::NormSums* norm_sums(int64_t /*count*/) { return nullptr; }
  // Adds what norms() finds to StepItem::norms of items whose adds_norms is set. Ordered on `stream`.
  virtual void add_norms(std::span<const StepItem> items, void* stream);
  // Index of the first item with a gradient that is not finite (or 2^62 and above), -1 if there is none. Synchronous.
  virtual int64_t first_nonfinite(std::span<const StepItem> items, int threads, void* stream) = 0;
  // The same, queued: see Guard. nullptr if unsupported: call first_nonfinite instead. On a capturing queue it is
  // recorded, and each replay checks, with the scales of the step prepared for it.
  virtual std::shared_ptr<Guard> queue_guard(std::span<const StepItem> /*items*/, void* /*stream*/) { return nullptr; }
  // Records a step of these items on a capturing queue. Throws kUnsupported if queues cannot capture.
  virtual std::shared_ptr<RecordedStep> record_step(std::span<const StepItem> items, bool ordered, void* stream);
  // Decodes codes to values, and encodes values to codes, in blocks within rows as in a step. Synchronous.
  virtual void decode(const CodecItem& item, void* stream) = 0;
  virtual void encode(const CodecItem& item, void* stream) = 0;

  // Packs signs to bits, unpacks bits to +1, -1 and 0, computes majorities and their counters, steps by signs, and does
  // error feedback (backend/signs.h). Items of one call do not share bytes that one of them writes. Ordered on
  // `stream`. Throw kInvalidArgument for inconsistent items.
  virtual void pack_signs(std::span<const SignItem> items, int threads, void* stream) = 0;
  virtual void unpack_signs(std::span<const SignItem> items, int threads, void* stream) = 0;
  virtual void vote_signs(const VoteItem& item, int threads, void* stream) = 0;
  virtual void count_signs(const CountItem& item, int threads, void* stream) = 0;
  virtual void apply_signs(std::span<const ApplyItem> items, int threads, void* stream) = 0;
  virtual void feedback(std::span<const FeedbackItem> items, int threads, void* stream) = 0;
  // One item, on the calling thread.
  void pack_signs(const SignItem& item, void* stream) { pack_signs({&item, 1}, 1, stream); }
  void unpack_signs(const SignItem& item, void* stream) { unpack_signs({&item, 1}, 1, stream); }
};

}  // namespace lowtide
