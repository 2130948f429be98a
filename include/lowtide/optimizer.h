// The optimizer: parameters in groups, quantized state that it owns, one call per step.
//
// Ownership: the optimizer owns the state and borrows the parameters, which must outlive it or be rebound. Gradients
// and options are borrowed for the call; on a device, gradients until the step is done there.
//
// Threads: one Optimizer is used by one thread at a time. A call that changes it while another call is under way is
// refused with an Error; reading it (state, report, ...) during another thread's call is a data race. Different
// Optimizers are independent. Steps use the process's thread pool. Results never depend on the number of threads or the
// instruction set.
//
// Streams: parameters in host memory are final when a call returns. For parameters on a device a step is queued on its
// stream; calls that read or change state wait for it.
//
// Errors: Error (error.h), and std::bad_alloc for small allocations. A call that throws has changed nothing unless its
// comment says otherwise, and the optimizer stays usable after each.
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
#include "lowtide/memory.h"
#include "lowtide/tensor.h"
#include "lowtide/version.h"

namespace lowtide {

// The answer to a gradient that holds a NaN, an infinity or, after grad_scale, a magnitude of 2^62 or more (its square
// could overflow).
enum class NonFinite : int32_t {
  kSkip = 0,   // no parameter and no state changes, nothing is counted as a step; StepResult says so
  kRaise = 1,  // as kSkip, but throws Error(kInvalidArgument) naming the parameter
  // No check, which saves one read of the gradients. Values spread, with quantized state through blocks.
  kPropagate = 2,
};

// A source of device memory in place of the driver: a framework's cache. allocate returns `bytes`, aligned to 256
// bytes, or nullptr. Both functions may be called in any call of the optimizer and in its destructor, on the calling
// thread, and must not throw. Memory given back may still be in use by work that is queued so far on the streams of
// steps and prefetches: hand it out again only to work behind that, as caches that are ordered by stream do.
struct DeviceAllocator {
  void* context = nullptr;
  void* (*allocate)(void* context, int64_t bytes) = nullptr;
  void (*free)(void* context, void* memory) = nullptr;
  // Optional: `memory` is given back next, and work that is queued on `stream`, one of the optimizer's own or that of
  // the last step, still uses it: hand it out when that has happened. If it returns 0, or without this function, a
  // later call of the optimizer gives such memory back, after it has happened.
  int32_t (*note_use)(void* context, void* memory, void* stream) = nullptr;
};

struct OptimizerOptions {
  // -- affect results
  std::string rule = "adamw";  // one of rule_names()
  NonFinite nonfinite = NonFinite::kSkip;
  // -- affect speed and memory only
  int threads = 0;              // worker threads, the caller included; 0: one per core that this process may run on
  std::string cpu_target = "";  // one of cpu_targets(); "": the best for this CPU
  Memory memory = {};           // the budget of all groups without their own
  // -- say where parameters and gradients are
  std::string backend = "cpu";  // one of report_backends() (lowtide/backends.h)
  std::string device = "";      // a device in the backend's words ("exact:0", "fast:1" of cuda); "": its best
  void* stream = nullptr;       // sycl::queue* or cudaStream_t whose device all steps use; nullptr: the backend's own
  DeviceAllocator allocator = {};  // for CUDA; without functions: the driver
  // The caller knows that all memory it hands over is that device's, as a framework does of its tensors; kernels that
  // touch other memory lose the device. Else CUDA is asked in every call, 0.4 us a question on an H100, and other
  // memory is refused by name.
  bool trusts_memory = false;
  // -- affects results
  uint64_t seed = 0;  // for stochastic rounding: random bits depend on the seed, the step and the element alone
};

struct GroupOptions {
  Hyper hyper = {};
  // State format, one of codec_names(). In the experimental one of 4 bits ("dynamic4") parameters with rows of odd
  // length get "dynamic8", and add_param and set_hyper refuse an average of both signs whose beta is above 0.9.
  std::string state = "dynamic8";
  int64_t min_quantized_numel = 4096;  // parameters with fewer elements keep float32 state
  std::optional<Memory> memory = {};   // this group's own budget
  // How state is rounded to its format: "nearest", "stochastic" (up or down at random, so that averages stay unbiased),
  // or "auto": stochastic for averages and sums ("bf16": for those of a beta of 0.995 or more).
  // Formats that need it ("float8", "dynamic4") refuse "nearest"; float32 never is rounded stochastically.
  std::string rounding = "auto";
  // Extra precision of bfloat16 and float16 weights, kept as a residual beside each; float32 weights need none. "":
  // none. "residual16", 2 bytes: weight and residual are the float32 weight, bit for bit (float16: for magnitudes of
  // 2^-14 and above, else to 2^-41). "residual8", 1 byte: 24 of its bits. "stochastic", no bytes: weights are rounded
  // stochastically. Weights that others change between steps keep their residual, half a unit in the last place at
  // most.
  std::string master = "";
  int budget_of = -1;     // share the budget of this group, of a lower number; -1: the optimizer's
  std::string rule = "";  // the rule of this group; "": the optimizer's
};

// The parameter that a tensor is a shard of. The state format follows from the whole, so it is the same however many
// shards there are.
struct WholeParam {
  std::vector<int64_t> sizes;  // of the whole parameter
  // The cut is not along dim 0, or there is only one row: shards may begin inside a block. A codec with blocks becomes
  // float32, also in the only shard. (Without this, a piece of a vector is allowed, with an offset and its own blocks.)
  bool rows_cut = false;
  // Where the shard begins in each dimension; empty: at 0. Random bits follow the elements of the whole, so shards are
  // rounded as the whole would be.
  std::vector<int64_t> offsets = {};
};

// A parameter's gradient in one step, with the parameter's sizes. Borrowed for the call.
struct Gradient {
  const void* data = nullptr;  // nullptr: no gradient, the parameter is left alone. A parameter without elements counts
                               // as stepped with any other address
  DType dtype = DType::kF32;
  const int64_t* strides = nullptr;  // in elements, 0 allowed; nullptr: contiguous
};

// A gradient norm that may still be under computation: Optimizer::queue_clip_grad_norm.
class QueuedClip;

struct StepOptions {
  // The device queue (an in-order sycl::queue*, a cudaStream_t) that the step is ordered on. When the call returns the
  // step is queued, and parameters are final for work that is queued there after it. The queue must outlive the
  // optimizer. nullptr: the backend's own (CUDA: the legacy default stream). Must be nullptr for CPU parameters.
  void* stream = nullptr;
  double grad_scale = 1.0;     // every gradient is multiplied by this (as float32) before use, e.g. 1 / loss scale
  bool assume_finite = false;  // the caller has checked the gradients already: no second check
  // For Memory::automatic: bytes of device memory that nothing else needs, also where activations are back, with memory
  // that the allocator keeps unused; -1: as many as the driver calls free now.
  int64_t free_bytes = -1;
  // One for each parameter, or empty. A parameter with an address and a gradient is neither read nor moved: the address
  // gets the direction that the rule would subtract from it, without learning rate, weight decay and the parameter
  // itself, as contiguous float32 [numel]; zeros if the step is skipped. (SGD: the direction that momentum gives.) For
  // rules that go on from there. The memory is borrowed as parameters are, and must be addressable by their device. Not
  // for ballots() and not on a queue that is recorded.
  std::span<float* const> directions = {};
  // The result of queue_clip_grad_norm() for these gradients: they are multiplied by its factor, too. It was made for
  // this step, and no gradient has changed since. Not on a queue that is recorded.
  std::shared_ptr<QueuedClip> clip = nullptr;
};

struct StepResult {
  bool applied = true;           // false: skipped because of a non-finite gradient
  int64_t nonfinite_param = -1;  // the first parameter (by number) whose gradient was not finite; -1: none
  // The device searches the gradients in the step itself (CUDA) and has not told yet. If one is not finite the step
  // changes nothing: the next call that has to know (a step, report(), steps(), synchronize(), save() ...) uncounts it
  // and, with NonFinite::kRaise, throws the error that this call would have thrown.
  bool pending = false;
};

// The norm of all gradients together, and what the next step needs to clip them: StepOptions with this grad_scale, and
// with assume_finite = finite.
struct ClippedNorm {
  double norm = 0;          // before clipping, after the grad_scale that was given; NaN or infinite if a gradient is
  double grad_scale = 1.0;  // that one times min(1, max_norm / (norm + 1e-6)); the one given, if the norm is not finite
  bool finite = true;       // false: there may be gradients that the step is not to take; its own check finds them
};

// The packed signs of all parameters, Optimizer::sign_count() of them. The signs of parameter i, in row-major order,
// begin at sign_offset(i). Sign s is bit s % 8 of byte s / 8, 1 for +. Block b holds the 64 signs from 64 b on; its
// presence is bit b % 8 of byte b / 8, and where it is 0 the block takes no part. The caller owns the memory; it has
// any alignment and, for parameters on a device, an address that the device can use. Borrowed for the call.
struct SignBuffer {
  std::byte* bits = nullptr;      // [sign_count() / 8]
  std::byte* presence = nullptr;  // [sign_count() / 512]
  std::byte* zeros = nullptr;     // laid out as bits, 1 where the sign is 0; nullptr: nowhere
};

// One state of one parameter, in memory of the optimizer that stays where it is as long as the optimizer. codes and
// scales are nullptr if the state is not in host memory of its own (streamed, or on a device): use read_state. A value
// is map[code] * scale, with one scale for each `block` elements of a row.
struct StateView {
  const char* name = "";   // "exp_avg", "exp_avg_sq", "momentum_buffer"; a constant
  const char* codec = "";  // "fp32", "bf16", "dynamic8"; a constant
  // The parameter's sizes, contiguous, code_bits each (4: two to a byte, the first in the low half).
  void* codes = nullptr;
  // [rows][scales_per_row]; nullptr if the codec has none. (With blocks of 128 a row has an even number of them, for
  // the blocks of 256 of its parameter.)
  float* scales = nullptr;
  int64_t numel = 0, rows = 0, scales_per_row = 0;
  int code_bits = 0, block = 0;
};

// A state that a parameter has or can be given.
struct StateInfo {
  const char* name = "";  // a constant
  bool is_signed = true;  // false: a second moment, never negative
};

class AsyncSave;

// A save that runs beside steps: Optimizer::save_async(). Copies are of the same save. Any thread; it may outlive the
// optimizer. In a forked child, which has nothing of the save, each call throws kInvalidArgument.
class LT_API SaveHandle {
 public:
  explicit SaveHandle(std::shared_ptr<AsyncSave> save);  // the library's

  // Whether the file is written, or cannot be.
  bool done() const;
  // Waits for that, at most so many seconds; below 0: for good. False if they have passed before. Throws what has made
  // the save fail, whatever save() throws: the file that was there before is then untouched. Not in a call of the
  // optimizer.
  bool wait(double seconds = -1) const;

  // Bytes of state that steps had to copy because the writer had not come to them, and the most that were kept at once.
  int64_t copied_bytes() const;
  int64_t most_kept_bytes() const;

 private:
  std::shared_ptr<AsyncSave> save_;
};

// Waits for all saves of this process that run beside steps. exit() also waits,
// unless called from inside one of those optimizers.
LT_API void finish_saves();

class LT_API Optimizer {
 public:
  // Makes an optimizer without parameters; opens its backend, and the scratch file of its budget when that is needed.
  // Throws kInvalidArgument, and kUnsupported for a backend or device that cannot be used here.
  explicit Optimizer(const OptimizerOptions& options);
  // Waits for the work queued on a device, and frees the state and the scratch files.
  ~Optimizer();
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;

  // -- Groups and parameters

  // Adds a group and returns its number, from 0. Throws kInvalidArgument on a bad value.
  int add_group(const GroupOptions& options);
  // Takes effect with the next step. Throws kInvalidArgument on a bad value, and on one that would change which states
  // there are once the group has a parameter: amsgrad, nesterov, centered, and whether momentum is 0 (except SGD's,
  // whose one state then appears, and stays).
  void set_hyper(int group, const Hyper& hyper);
  // Valid until the next add_group.
  const Hyper& hyper(int group) const;
  // As in GroupOptions and OptimizerOptions. Files of save() do not hold these: with them and the hyper-parameters
  // restored, a loaded optimizer goes on bit for bit.
  void set_rounding(int group, const std::string& rounding);
  void set_seed(uint64_t seed);
  void set_threads(int threads);
  void set_nonfinite(NonFinite policy);

  // Registers a parameter and returns its number, from 0 over all groups. Its state is allocated as zeros, under a
  // budget in its first step, and with with_state = false when it first has a gradient. whole: the parameter that
  // `param` is a shard of, at least as large in each dimension. Throws kInvalidArgument for element types, sizes and
  // layouts that cannot be stepped (two elements at one address), kOutOfMemory.
  int64_t add_param(int group, const TensorView& param, bool with_state = true,
                    const std::optional<WholeParam>& whole = {});
  // Allocates now the states that parameters under a budget would get in their first step. Throws as step.
  void place_states();
  // Says that the parameter's memory moved. Its sizes must be the same; type and strides may differ, but for the type
  // of weights with a residual. State is kept.
  void rebind(int64_t param, const TensorView& view);
  int64_t param_count() const;

  // -- Stepping

  // Decides about these gradients as the next step would (applied or not, or the Error), without taking it: for
  // optimizers of several processes, which must decide alike. Counts nothing, but states may be allocated.
  StepResult check(std::span<const Gradient> grads, const StepOptions& options = {});

  // Reads these gradients once, for their norm and whether all are finite; writes nothing and keeps nothing. norm_type:
  // 2, or infinity for the largest magnitude. Sums are exact: the norm depends neither on threads nor on the
  // instruction set, nor on how tensors are cut. This is torch.nn.utils.clip_grad_norm_ with the multiplication left to
  // the step. Waits, on a device for all that is queued on options.stream. Throws kInvalidArgument, and kUnsupported
  // for a backend that finds no norms.
  ClippedNorm clip_grad_norm(std::span<const Gradient> grads, double max_norm, double norm_type = 2,
                             const StepOptions& options = {});
  // Asynchronous clip_grad_norm(). Pass the result to the next step as StepOptions::clip. Writes the norm to `norm` as
  // float32 (memory of the parameters' device, or nullptr). On CUDA nothing waits: the reading is queued on
  // options.stream, and the step finds the factor on the device. The gradients must stay until the step has
  // read them. Throws as clip_grad_norm; one thread at a time, as for step().
  std::shared_ptr<QueuedClip> queue_clip_grad_norm(std::span<const Gradient> grads, double max_norm, double norm_type,
                                                   float* norm, const StepOptions& options = {});
  // The norm that was queued: waits for it. Any thread, while the optimizer exists. Throws kDeviceLost.
  static ClippedNorm clipped(QueuedClip& clip);

  // Takes one step of all parameters; grads[i] belongs to parameter i. Either all parameters and states are stepped or,
  // on a non-finite gradient or any exception, none is. With state on disk there are two exceptions. A chunk that
  // cannot be written stays in RAM: the step is complete, and throws kIo to say so. A chunk that cannot be read, or
  // memory that is short meanwhile, can stop the step half way (kIo, kOutOfMemory or std::bad_alloc): then each block
  // of a parameter and its state are both as before or both as after the step, and later steps go on from there. Until
  // the next save(), which has one count for each parameter, each block counts its own steps.
  StepResult step(std::span<const Gradient> grads, const StepOptions& options = {});

  // The number of signs of all parameters together, and the number of a parameter's first one. Both are multiples of
  // 1024, so no two parameters share a byte. They change with the next add_param.
  int64_t sign_count() const;
  int64_t sign_offset(int64_t param) const;
  // Takes a step as step() does, with all its promises, but moves no parameter: `out` gets the sign of each element's
  // direction (see StepOptions::directions; for Lion, of the interpolation). An exact zero is + if zero_is_plus. Blocks
  // of 64 zeros and parameters without a gradient have no presence. bits and presence are written whole, on a device in
  // the aligned words of 4 bytes that hold them; zeros must be nullptr. A step that is skipped leaves all bits 0; one
  // that throws may leave any.
  StepResult ballots(std::span<const Gradient> grads, const SignBuffer& out, bool zero_is_plus = true,
                     const StepOptions& options = {});
  // Moves all parameters by signs, as a vote gives them: p = p - (p lr weight_decay + lr sign), with the group's lr and
  // weight_decay, in float32 rounded to nearest. Blocks without presence keep every bit (signs.presence nullptr: all
  // are present). Needs neither gradients nor state, and counts no step: ballots() has. stream: as in StepOptions.
  void apply_signs(const SignBuffer& signs, void* stream = nullptr);

  // Prepares the next replay of a recorded step: a step on a queue that is being recorded (captured in a CUDA graph) is
  // not taken, and replays take it. Counts a step and queues, on options.stream, what the replay there needs: its
  // number and the present hyper-parameters. All state must be in device memory, gradients and parameters where they
  // were when the step was recorded. Throws kInvalidArgument if no step has been recorded, the last replay prepared was
  // not taken, or one was not prepared (it has changed nothing); with kPropagate, which waits for the replay before the
  // last only, perhaps in a later call. Where gradients are searched, so does any call that depends on the outcome.
  StepResult prepare_replay(const StepOptions& options = {});

  // -- Averages. Only rules that evaluate different weights from the ones they train have them (schedulefree).

  // Moves all parameters from the weights to train to those to evaluate (true), or back (false); those that are there
  // already stay. Back and forth rounds twice: in float32 by 2^-24 of the weight, in 16 bits by what the master keeps.
  // Saved and resumed runs take the same bits (with master="stochastic", where no more than one switch came after the
  // last step). A step, check or ballot of a parameter that has the weights to evaluate is refused. They go back by the
  // beta1 by which they came. Takes up to 3 MiB where the parameters are, and for state that streams a float32 copy of
  // the largest parameter in host memory. stream: as in StepOptions; waits for it. Throws what reading state throws
  // (kIo, kOutOfMemory ...): the parameters moved so far are known, and the next call moves the others. A disk that
  // fails while a residual is replaced does to it what it does in write_state.
  void set_evaluating(bool evaluating, void* stream = nullptr);
  bool evaluating(int64_t param) const;
  // The beta1 by which the parameter came to the weights to evaluate; 0: it has those to train.
  double evaluating_beta1(int64_t param) const;
  // Says which weights the parameter has now, without moving it: after weights were loaded. Files hold state alone.
  // beta1, in (0, 1), by which they came to the weights to evaluate; 0: by the group's.
  void mark_evaluating(int64_t param, bool evaluating, double beta1 = 0);

  // -- Memory. Nothing here changes a bit of any result.

  // Takes up to `bytes` more of device memory and queues copies of streamed state of the next step into it, behind what
  // is queued on `stream` so far (where the memory may just have become free). Called during backward, as activations
  // are freed, it hides reading behind computing; the step gives the memory back. Does not wait. Returns the bytes
  // taken: 0 without state that streams to a device, or if memory is short.
  int64_t prefetch(int64_t bytes, void* stream = nullptr);
  // Moves state out of device memory until at least `bytes` (or all that it takes) are free, and waits for that. Under
  // Memory::automatic the state comes back when there has been room for a while, else it stays on the host. Returns the
  // bytes freed: 0 for parameters in host memory.
  int64_t demote(int64_t bytes);
  // Moves all state out of RAM to the disk of its budget, to make room while no steps are taken, and back. Whatever
  // needs the state (a step, save, read_state, ...) brings it back by itself; until then memory that StateView shows
  // reads as zero. Throws kInvalidArgument (a budget has no disk, or too little of it), and nothing has moved; or kIo,
  // and the state of that budget stays where it was.
  void offload();
  void onload();
  // Waits until everything that steps have queued on a device is done, state that streams back to the host included.
  void synchronize();

  // Counts and bytes; waits for a pending step.
  MemoryReport report() const;
  // Steps skipped for gradients that are not finite, as far as that is known: waits for no device.
  int64_t skipped_steps() const;

  // -- State. These calls wait for what is queued on a device; arrays are host memory of the caller.

  // The states of a parameter in the rule's order; empty if it has none yet.
  std::vector<StateView> state(int64_t param) const;
  bool has_state(int64_t param) const;
  // Allocates all states that the parameter can have, also one that its present hyper-parameters do not use (SGD's
  // momentum buffer; beside a residual only the states in use). states_of() describes them, in the order of state().
  void allocate_state(int64_t param);
  std::vector<StateInfo> states_of(int64_t param) const;
  // The codec that this parameter's state has or will have (small parameters: "fp32"); a constant.
  const char* state_codec(int64_t param) const;
  // The number of steps that this parameter has taken. Set it last when restoring state: 0 says that the state is
  // empty. The address stays the same as long as the optimizer, for views.
  int64_t steps(int64_t param) const;
  void set_steps(int64_t param, int64_t steps);
  const int64_t* steps_address(int64_t param) const;
  // Decodes state k to row-major float32 [numel], and encodes it from there as a step would. Decoding and encoding
  // again may change dynamic8 codes (its signed map has no entry at -1); to copy state exactly, copy codes and scales.
  void export_state(int64_t param, int k, float* out) const;
  void import_state(int64_t param, int k, const float* in);
  // Copies state k as it is stored, wherever it lives: codes [numel] and scales [rows][scales_per_row] (may be nullptr
  // if the codec has none). write_state does not set steps(). If the disk stops it (or import_state) half way, part of
  // the state is old: step, read_state, export_state and save refuse it until it is written or loaded again. If the
  // state only cannot be written to the disk, it is complete and kept in RAM, and kIo says so.
  void read_state(int64_t param, int k, void* codes, float* scales) const;
  void write_state(int64_t param, int k, const void* codes, const float* scales);

  // -- Files

  // Writes all state to a file, durably and all or nothing, straight from wherever it lives: no second copy in memory.
  // metadata: any text of the caller's, kept with it. Throws kIo; a file that was there before is then untouched.
  // docs/checkpoint-format.md describes the format.
  void save(const std::string& path, const std::string& metadata = "") const;
  // Begins such a save, of the state of now, and returns: a thread of the library writes the file while steps go on.
  // The file is, bit for bit, what save() would write now. A step copies what it is about to change and the thread has
  // not written yet, chunk by chunk (in pieces of 4 MiB where state is directly addressable). Copies take copy_bytes at
  // most, or one chunk where that is more (-1: no limit); a step that finds no room waits for the thread, whose own
  // buffer takes one chunk or 4 MiB, whichever is more.
  // On any failure, and if the process is killed, the file that was there before is untouched. A failure comes out of
  // the handle's wait() or, if nobody has waited, of the next save() or save_async(), which then does nothing else;
  // steps go on. Both wait for a save that runs, and so does the destructor; load() refuses while one runs. Calls that
  // move or replace state (offload, import_state, write_state, prepare_replay) wait until all that is left is copied or
  // written. Do not write to memory that state() shows meanwhile.
  // Throws kInvalidArgument, kOutOfMemory (also where no thread can be started), and whatever waiting for a device
  // does.
  SaveHandle save_async(const std::string& path, const std::string& metadata = "",
                        int64_t copy_bytes = kDefaultCopyBytes) const;
  static constexpr int64_t kDefaultCopyBytes = int64_t{256} << 20;
  // Reads such a file of an optimizer with the same rule, parameters and state formats into this one, and returns the
  // metadata. State goes where this one's budget says. The whole file is checked before anything changes. Throws
  // kInvalidArgument or kIo; a disk that fails after that check leaves the state as a failed write_state does.
  std::string load(const std::string& path);

  const char* cpu_target() const;  // the instruction set in use; a constant

 private:
  struct Impl;
  friend struct OptimizerEnv;  // for tests of the library itself
  explicit Optimizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// -- Functions without an optimizer: any thread, at any time.

// The metadata of a checkpoint file. Throws as Optimizer::load.
LT_API std::string checkpoint_metadata(const std::string& path);

// The update rules, the state formats, and the states that a rule keeps ("exp_avg", "exp_avg_sq") without options that
// add to them. state_names throws kInvalidArgument for an unknown rule.
LT_API std::vector<std::string> rule_names();
LT_API std::vector<std::string> codec_names();
LT_API std::vector<std::string> state_names(const std::string& rule);
// The instruction sets that this CPU can run, best first: "avx512_vbmi", "avx512", "avx2", "scalar".
LT_API std::vector<std::string> cpu_targets();
LT_API const char* version();  // "0.1.0"

// Joins bfloat16 or float16 weights in host memory and their residuals to float32 out[n], and splits them again,
// rounded to nearest. GroupOptions::master says what residuals are: int16 [n] ("residual16"), int8 [n] ("residual8"),
// or unused ("stochastic"). Throw kInvalidArgument.
LT_API void join_master(const std::string& master, DType dtype, const void* weights, const void* residual, int64_t n,
                        float* out);
LT_API void split_master(const std::string& master, DType dtype, const float* in, int64_t n, void* weights,
                         void* residual);

}  // namespace lowtide
