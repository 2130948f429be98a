// The optimizer: parameters in groups, quantized state that it owns, one call per step.
//
// Threads: one Optimizer may be used by one thread at a time; a call that changes it while another is under way is
// refused with an Error. Reading it (state, report, ...) during another thread's call is a data race. Different
// Optimizers are independent. Results never depend on the number of threads or the instruction set.
//
// Errors are thrown as Error; small allocations that fail as std::bad_alloc. The optimizer stays usable after each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lowtide/error.h"
#include "lowtide/export.h"
#include "lowtide/hyper.h"
#include "lowtide/memory_report.h"
#include "lowtide/tensor.h"

namespace lowtide {

// Says how a step treats a gradient that holds a NaN, an infinity or, after grad_scale, a magnitude of 2^62 and above
// (its square could overflow).
enum class NonFinite : int32_t {
  kSkip = 0,   // no parameter and no state changes, nothing is counted as a step; StepResult says so
  kRaise = 1,  // as kSkip, but throws Error(kInvalidArgument) naming the parameter
  kPropagate =
      2,  // no check (saves one read of the gradients); values spread, with quantized state through their block
};

// Where state may live. For parameters in host memory: State that does not fit into `ram_bytes` lives in a scratch file
// and streams through RAM every step; only what does not fit moves, and no bit of any result depends on it. Without a
// limit, all state is in RAM.
struct Memory {
  int64_t ram_bytes = -1;   // of the host, for state, buffers included; -1: no limit
  std::string disk = "";    // directory for a scratch file that has no name and leaves nothing behind; "": no disk
  int64_t disk_bytes = -1;  // at most this much there; -1: no limit
  int64_t chunk_bytes = 0;  // unit of moving; 0: chosen from the budget
  // For parameters on a device, of its memory. What does not fit streams between it and pinned host memory (ram_bytes)
  // every step; there is no disk tier behind that yet. 0 < device_bytes must hold a few chunks.
  int64_t device_bytes = -1;  // for state, buffers included; -1: 7/8 of what is free when state is placed (of all,
                              // where the driver does not tell)
  bool managed = false;       // instead: all of it in managed (shared) memory, which the driver migrates; never more
                              // than device_bytes, or than the device has free
  // How state that does not fit reaches the device: "copy" (into buffers in its memory and back), "zero_copy" (kernels
  // reach into pinned host memory), "hybrid" (copied in, written by kernels), or "": the fastest of those the device
  // can do, which is measured once for each kind of machine and remembered (docs/devices.md).
  std::string transfer = "";
  // Instead of device_bytes: all state begins in host memory; once steps have shown what else the device has to hold,
  // as much as fits is moved there, and back when memory gets short. See Optimizer::demote and StepOptions::free_bytes.
  bool automatic = false;
};

// Where device memory is taken from instead of the driver: a framework's cache. allocate: `bytes` of it, aligned to 256
// bytes, or nullptr. Both may be called in any call of the optimizer and in its destructor, on the calling thread; they
// must not throw. Memory that is given back may still be used by what is queued on the streams of steps and prefetches
// so far: it is to be handed out again to work behind that only, as caches that are ordered by stream do.
struct DeviceAllocator {
  void* context = nullptr;
  void* (*allocate)(void* context, int64_t bytes) = nullptr;
  void (*free)(void* context, void* memory) = nullptr;
};

struct OptimizerOptions {
  // -- affect results
  std::string rule = "adamw";  // one of rule_names()
  NonFinite nonfinite = NonFinite::kSkip;
  // -- affect speed only
  int threads = 0;              // worker threads incl. the caller; 0 = one per core this process may run on
  std::string cpu_target = "";  // "" = best for this CPU, else one of cpu_targets()
  Memory memory = {};           // one budget for all groups without their own
  // -- where parameters and gradients are
  std::string backend = "cpu";     // one of backends() (lowtide/backends.h)
  std::string device = "";         // of the backend: "" = its best, else as it names them ("exact:0", "fast:1" of cuda)
  void* stream = nullptr;          // sycl::queue* or cudaStream_t: its device is that of all steps; nullptr: own ones
  DeviceAllocator allocator = {};  // for CUDA; without functions: the driver
  // -- affects results
  uint64_t seed = 0;  // of stochastic rounding, whose random bits depend on it, on the step and on the element alone
};

struct GroupOptions {
  Hyper hyper = {};
  // Codec of the state, one of codec_names(). Instead of those with 4 bits ("dynamic4", "mixed12") parameters with rows
  // of odd length have "dynamic8"; for a parameter with 4 bits add_param and set_hyper refuse an average of both signs
  // whose beta is above 0.9.
  std::string state = "dynamic8";
  int64_t min_quantized_numel = 4096;  // parameters with fewer elements keep float32 state
  std::optional<Memory> memory = {};   // this group's own budget
  // How states are rounded to their format: "nearest", "stochastic" (up or down at random, so that an average stays
  // unbiased), or "auto": stochastic for averages with a beta of 0.995 or more and for sums, else to nearest.
  // Formats that need stochastic rounding ("float8", "dynamic4") refuse "nearest" and are always rounded so where they
  // do; float32 never is.
  std::string rounding = "auto";
  // How weights of bfloat16 and float16 are made more precise ("": not at all; float32 weights always are as they are):
  // "residual16", 2 bytes more for each: the weight and its residual are the float32 weight, bit for bit (float16:
  // for magnitudes of 2^-14 and above, else to 2^-41); "residual8", 1 byte: 24 of its bits; "stochastic", none: the
  // weight is rounded stochastically, without bias. Weights that others change between steps keep their
  // residual, half of a unit in their last place at most.
  std::string master = "";
  int budget_of = -1;     // without a budget: that of this group, of a lower number; -1: the optimizer's
  std::string rule = "";  // another rule than the optimizer's, for this group
};

// The parameter that a tensor is a shard of. Its state format is chosen by the whole, so that it is the same however
// many shards there are.
struct WholeParam {
  std::vector<int64_t> sizes;  // of the whole parameter
  // The cut is not along dim 0, or there is only one row: edges of shards may fall into blocks. Such a parameter gets
  // float32 state in place of a codec with blocks, also as the only shard.
  bool rows_cut = false;
  // Where the shard begins in each dimension; empty: at 0. Random bits go by elements of the whole, so that shards are
  // rounded as the whole would be.
  std::vector<int64_t> offsets = {};
};

// A gradient for one step: the parameter's sizes, strides in elements (nullptr = contiguous; 0 allowed). Borrowed for
// the call. data == nullptr: this parameter has no gradient and is left alone (a parameter without elements is counted
// as stepped with any other address).
struct Gradient {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  const int64_t* strides = nullptr;
};

struct StepOptions {
  // Device queue (sycl::queue*, in order; cudaStream_t) that the step is ordered on: when the call returns, the step is
  // queued, and parameters are final for what is queued there next. It must outlive the optimizer. nullptr: the
  // backend's own (CUDA: the legacy default stream). Must be nullptr for CPU parameters.
  void* stream = nullptr;
  double grad_scale = 1.0;     // every gradient is multiplied by this (as float32) before use, e.g. 1/loss scale
  bool assume_finite = false;  // the caller has checked the gradients already: no second check
  // For Memory::automatic: bytes of device memory that nothing else needs now, counting what the allocator keeps
  // unused; -1: what the driver calls free.
  int64_t free_bytes = -1;
  // One pointer for each parameter, or empty. Where it is not nullptr and there is a gradient, the parameter is neither
  // read nor moved, and this gets what the rule would subtract from it, without learning rate, weight decay and the
  // parameter itself (SGD: the direction that momentum gives), as contiguous float32 [numel]; zeros if the step is
  // skipped. For rules that go on from there. Memory that the parameters' device can address, borrowed as parameters
  // are. Not for ballots() and on a queue that is recorded.
  std::span<float* const> directions = {};
};

struct StepResult {
  bool applied = true;           // false: skipped because of a non-finite gradient
  int64_t nonfinite_param = -1;  // the first parameter (by number) whose gradient was not finite
  // On a device that searches gradients in the step itself (CUDA): not known yet. A step whose gradients are not finite
  // changes nothing; the next call that has to know (a step, report(), steps(), synchronize(), save() ...) uncounts it,
  // and with NonFinite::kRaise throws what this one would have thrown.
  bool pending = false;
};

// Where the packed signs of all parameters are: Optimizer::sign_count() of them, those of parameter i, in row-major
// order, from number sign_offset(i) on. Sign s is bit s % 8 of byte s / 8, 1 for +; block b, of the 64 signs from
// 64 b on, has presence bit b % 8 of byte b / 8, and takes no part where that is 0. Of any alignment, owned by the
// caller and borrowed for the call; for parameters on a device, memory that the device can address.
struct SignBuffer {
  std::byte* bits = nullptr;      // [sign_count() / 8]
  std::byte* presence = nullptr;  // [sign_count() / 512]
  std::byte* zeros = nullptr;     // as bits, 1 where the sign is 0; nullptr: nowhere
};

// One state of one parameter, in the optimizer's memory, alive as long as the Optimizer. Under a memory budget that it
// does not fit into, codes and scales are nullptr: see Optimizer::read_state.
// codes: the parameter's sizes, contiguous; code_bits each (4: two to a byte, the first in the low half). scales:
// float32 [rows][scales_per_row], nullptr if the codec has none; decoded value = table[code] * scale of its block of
// `block` elements within the row. (A row of blocks of 128 has an even number of scales, for the blocks of 256 of its
// parameter.)
struct StateView {
  const char* name = "";   // "exp_avg", "exp_avg_sq", "momentum_buffer"; a constant
  const char* codec = "";  // "fp32", "bf16", "dynamic8"; a constant
  void* codes = nullptr;
  float* scales = nullptr;
  int64_t numel = 0, rows = 0, scales_per_row = 0;
  int code_bits = 0, block = 0;
};

// A state that a parameter has or can be given.
struct StateInfo {
  const char* name = "";  // a constant
  bool is_signed = true;  // else a second moment, never negative
};

class LT_API Optimizer {
 public:
  explicit Optimizer(const OptimizerOptions& options);
  ~Optimizer();
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;

  // Adds a group; returns its number, from 0. Throws kInvalidArgument on a bad value.
  int add_group(const GroupOptions& options);
  // Once the group has a parameter, what decides which states a rule has must stay: amsgrad, nesterov, centered, and
  // whether momentum is 0 (SGD's may change: its one state comes with it and stays).
  void set_hyper(int group, const Hyper& hyper);
  const Hyper& hyper(int group) const;
  // As in GroupOptions and OptimizerOptions. What files of save() do not hold, for callers to restore: with them, and
  // the hyper-parameters, a loaded optimizer goes on bit for bit.
  void set_rounding(int group, const std::string& rounding);
  void set_seed(uint64_t seed);

  // Registers a parameter (not owned, must outlive the optimizer or be rebound) and allocates its state, zeroed.
  // Returns its number, counted from 0 over all groups. Refuses element types, sizes and layouts it cannot step
  // (two elements at one address). with_state = false postpones the allocation to the first gradient. `whole`: param is
  // a shard of that, and no larger in any dimension.
  int64_t add_param(int group, const TensorView& param, bool with_state = true,
                    const std::optional<WholeParam>& whole = {});
  // Allocates now what parameters added with state under a memory budget would otherwise get in the first step. Throws
  // as step.
  void place_states();
  // The parameter's memory moved (same sizes; type and strides may differ). State is kept.
  void rebind(int64_t param, const TensorView& view);
  int64_t param_count() const;

  // Returns what the next step would decide about these gradients (applied or not, or the Error), without taking it:
  // for optimizers of several processes, which must decide alike. Counts nothing; states may be allocated.
  StepResult check(std::span<const Gradient> grads, const StepOptions& options = {});

  // One step over all parameters; grads[i] belongs to parameter i. Either all parameters and states are stepped or,
  // on a non-finite gradient or any exception, none is. With state on disk there are two exceptions. A chunk that
  // cannot be written stays in RAM: the step is complete, and throws kIo to say so. A chunk that cannot be read, or
  // memory that is short meanwhile, can stop the step half way (kIo, kOutOfMemory or std::bad_alloc): then every block
  // of a parameter and its state are both of before or both of after the step, later steps go on from there, and each
  // block counts the steps that it has taken itself (until the next save(), which has one count for each parameter).
  StepResult step(std::span<const Gradient> grads, const StepOptions& options = {});

  // Signs of all parameters together, a multiple of 1024, and the number of a parameter's first, which is one too: no
  // two parameters share a byte. They change with the next add_param.
  int64_t sign_count() const;
  int64_t sign_offset(int64_t param) const;
  // A step as step() takes it, with all it promises, in which no parameter moves: `out` gets the sign of what the rule
  // would subtract from each element, without learning rate, weight decay and the parameter itself (Lion: of the
  // interpolation; SGD: of the direction that momentum gives). An exact zero is + if zero_is_plus; blocks of 64 zeros
  // and parameters without a gradient have no presence. bits and presence are written whole, zeros must be nullptr. A
  // step that is skipped leaves all bits 0; one that throws may leave any.
  StepResult ballots(std::span<const Gradient> grads, const SignBuffer& out, bool zero_is_plus = true,
                     const StepOptions& options = {});
  // Moves all parameters by signs, as a vote gives them: p = p - (p lr weight_decay + lr sign), with the group's lr and
  // weight_decay, in float32 rounded to nearest. Blocks without presence keep every bit (`signs.presence` nullptr: all
  // are present). Neither gradients nor state are needed, and no step is counted: ballots() has. `stream` as in
  // StepOptions.
  void apply_signs(const SignBuffer& signs, void* stream = nullptr);

  // A step on a queue that is recorded for replays (a CUDA graph that captures it) takes none: it records one, which
  // replays then take. Before each replay: counts a step and queues, on `stream`, what the replay there needs: its
  // number and the hyper-parameters as they are now. A replay without it changes nothing, and the next call throws
  // kInvalidArgument to say so; so does a second call without a replay between, and, where gradients are searched, any
  // call that has to know what the replay did (StepResult::pending). All state must be in device memory (Memory without
  // a limit that it exceeds), gradients and parameters where they were when it was recorded. Throws kInvalidArgument if
  // no step has been recorded.
  StepResult prepare_replay(const StepOptions& options = {});

  // On a device, where state streams: takes up to `bytes` more of device memory and queues copies of the state that the
  // next step needs into it, after what is queued on `stream` so far, where the memory may just have become free.
  // Called during backward, as activations are freed, it hides reading behind computing; the step gives the memory
  // back. Nothing happens without state that streams, or if memory is short. Returns the bytes taken.
  int64_t prefetch(int64_t bytes, void* stream = nullptr);
  // On a device: moves state out of its memory until at least `bytes` (or all there is) are free again, and waits for
  // that. Under Memory::automatic it comes back when there has been room for a while, else it stays on the host.
  // Returns the bytes freed. No bit of any result changes.
  int64_t demote(int64_t bytes);

  // On a device: waits until all that steps have queued has happened, state that streams back to the host included.
  void synchronize();

  // States of a parameter in the rule's order; empty if it has none yet.
  std::vector<StateView> state(int64_t param) const;
  bool has_state(int64_t param) const;
  // Allocates all states that the parameter can have, also one that its present hyper-parameters do not use (SGD's
  // momentum buffer). states_of: what they are, in the order of state().
  void allocate_state(int64_t param);
  std::vector<StateInfo> states_of(int64_t param) const;
  // Name of the codec this parameter's state has or will have (float32 for small parameters).
  const char* state_codec(int64_t param) const;
  // Number of steps this parameter has taken, and to set it when state has been restored (set it last: 0 says that the
  // state holds nothing yet). The address is stable, for views.
  int64_t steps(int64_t param) const;
  void set_steps(int64_t param, int64_t steps);
  const int64_t* steps_address(int64_t param) const;
  // Decode state k to row-major float32 [numel], or encode it from there. import makes the state that a step would
  // have stored for these values. Decoding and encoding again may change dynamic8 codes (its signed map has no entry at
  // -1); to copy state exactly, copy codes and scales.
  void export_state(int64_t param, int k, float* out) const;
  void import_state(int64_t param, int k, const float* in);
  // Copies state k as it is stored, wherever it lives: codes [numel] and scales [rows][scales_per_row] (may be nullptr
  // where StateView has none). write_state does not set steps(). If the disk stops it (or import_state) half way, part
  // of the state is of before: it is refused by step, read_state, export_state and save until it is written or loaded
  // again. If it only cannot be written to the disk it is complete and kept in RAM, and kIo says so.
  void read_state(int64_t param, int k, void* codes, float* scales) const;
  void write_state(int64_t param, int k, const void* codes, const float* scales);

  // Writes all state to a file, durably and all or nothing, straight from wherever it lives: no second copy in memory.
  // `metadata`: any text of the caller's, kept with it. Throws kIo; then a file that was there before is untouched. The
  // format is docs/checkpoint-format.md.
  void save(const std::string& path, const std::string& metadata = "") const;
  // Reads such a file of an optimizer with the same rule, parameters and state formats into this one; state goes where
  // this one's budget says. Everything in the file is checked before anything changes. Throws kInvalidArgument or kIo;
  // a disk that fails after that check leaves what write_state leaves. Returns the metadata.
  std::string load(const std::string& path);

  // Moves all state out of RAM to the disk of its budget, to make room while no steps are taken, and back. Whatever
  // needs the state (a step, save, read_state, ...) brings it back by itself; until then memory that StateView shows
  // reads as zero. Throws kInvalidArgument (a budget has no disk, or too little): nothing has moved; or kIo: the state
  // of that budget stays where it was.
  void offload();
  void onload();

  void set_threads(int threads);  // as OptimizerOptions::threads
  void set_nonfinite(NonFinite policy);
  MemoryReport report() const;
  const char* cpu_target() const;  // the instruction set in use

 private:
  struct Impl;
  friend struct OptimizerEnv;  // for tests of the library itself
  explicit Optimizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The metadata of a checkpoint file. Throws as Optimizer::load.
LT_API std::string checkpoint_metadata(const std::string& path);

LT_API std::vector<std::string> rule_names();
LT_API std::vector<std::string> codec_names();
LT_API std::vector<std::string> state_names(const std::string& rule);  // e.g. "exp_avg", "exp_avg_sq"
// Instruction-set paths that this CPU can run, best first: "avx512_vbmi", "avx512", "avx2", "scalar".
LT_API std::vector<std::string> cpu_targets();
LT_API const char* version();  // "0.1.0"

// Weights of bfloat16 or float16 in host memory and their residuals as floats, out[n], and back (rounded to nearest):
// GroupOptions::master says what residuals are. `residual`: int16 [n] ("residual16"), int8 [n] ("residual8"), or unused
// ("stochastic"). Throw kInvalidArgument.
LT_API void join_master(const std::string& master, DType dtype, const void* weights, const void* residual, int64_t n,
                        float* out);
LT_API void split_master(const std::string& master, DType dtype, const float* in, int64_t n, void* weights,
                         void* residual);

}  // namespace lowtide
