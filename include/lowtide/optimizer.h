// The optimizer: parameters in groups, the quantized state that it owns, and one call per step.
//
// Ownership: the optimizer owns the state and borrows the parameters, which must outlive it or be rebound. Gradients
// and options are borrowed for the call; gradients on a device, until the step is done there.
//
// Threads: one thread at a time uses an Optimizer. A call that changes it while another call is under way is refused
// with an Error; reading it (state, report, ...) during another thread's call is a data race. Different Optimizers are
// independent. Steps use the process's thread pool. Results never depend on the number of threads or the instruction
// set.
//
// Streams: parameters in host memory are final when a call returns. For parameters on a device a step is queued on its
// stream; calls that read or change state wait for it.
//
// Errors: Error (error.h), and std::bad_alloc for small allocations. A call that throws has changed nothing unless its
// comment says otherwise, and the optimizer stays usable.
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
#include "lowtide/group.def"
#include "lowtide/hyper.h"
#include "lowtide/memory.h"
#include "lowtide/tensor.h"
#include "lowtide/version.h"

namespace lowtide {

// How to treat a gradient with a NaN, an infinity or, after grad_scale, a magnitude of 2^62 or more (its square could
// overflow).
enum class NonFinite : int32_t {
  kSkip = 0,   // no parameter or state changes, and the step is not counted; StepResult says so
  kRaise = 1,  // like kSkip, but throws Error(kInvalidArgument) that names the parameter
  // No check, which saves one read of the gradients. Bad values spread, in quantized state to whole blocks.
  kPropagate = 2,
};

// A source of device memory that replaces the driver: a framework's cache. allocate returns `bytes`, aligned to 256
// bytes, or nullptr. Any call on the optimizer, its destructor included, may call both functions on the calling thread;
// they must not throw. Work already queued on the streams of steps and prefetches may still use freed memory: hand it
// out again only to work queued later, as stream-ordered caches do.
struct DeviceAllocator {
  void* context = nullptr;
  void* (*allocate)(void* context, int64_t bytes) = nullptr;
  void (*free)(void* context, void* memory) = nullptr;
  // Optional. Announces that `memory` is about to be freed while work queued on `stream` (one of the optimizer's
  // streams, or the last step's) still uses it: hand it out only after that work. If the function is absent or returns
  // 0, a later call of the optimizer frees such memory, once that work is done.
  int32_t (*note_use)(void* context, void* memory, void* stream) = nullptr;
};

struct OptimizerOptions {
  // Results depend on these:
  std::string rule = "adamw";  // one of rule_names()
  NonFinite nonfinite = NonFinite::kSkip;
  // Only speed and memory depend on these:
  int threads = 0;              // worker threads, the caller included; 0: one per core that this process may run on
  std::string cpu_target = "";  // one of cpu_targets(); "": the best for this CPU
  Memory memory = {};           // the budget of groups without their own
  // Where parameters and gradients are:
  std::string backend = "cpu";  // one of report_backends() (lowtide/backends.h)
  std::string device = "";      // a device in the backend's terms (cuda: "exact:0", "fast:1"); "": the backend's best
  void* stream = nullptr;       // sycl::queue* or cudaStream_t whose device all steps use; nullptr: the backend's own
  DeviceAllocator allocator = {};  // for cuda and sycl; empty: the driver
  // true: the caller guarantees that all memory it passes belongs to that device, as a framework can for its tensors; a
  // kernel that touches other memory loses the device. false: every call asks CUDA, at 0.4 us per question on an H100,
  // and refuses other memory by name.
  bool trusts_memory = false;
  // Results depend on this:
  uint64_t seed = 0;  // for stochastic rounding: random bits depend only on the seed, the step and the element
};

struct GroupOptions {
  Hyper hyper = {};
  // lowtide/group.def lists these options and says what each means.
#define LT_GROUP_TEXT(name, value, fixed) std::string name = value;
#define LT_GROUP_COUNT(name, value, fixed) int64_t name = value;
#define LT_GROUP_BUDGET(name) std::optional<Memory> name = {};
  LT_GROUP_OPTIONS(LT_GROUP_TEXT, LT_GROUP_COUNT, LT_GROUP_BUDGET)
#undef LT_GROUP_TEXT
#undef LT_GROUP_COUNT
#undef LT_GROUP_BUDGET
  int budget_of = -1;     // an earlier group whose budget this one shares; -1: the optimizer's budget
  std::string rule = "";  // the rule of this group; "": the optimizer's
};

// The parameter of which a tensor is a shard. It determines the state format, whatever the number of shards.
struct WholeParam {
  std::vector<int64_t> sizes;  // of the whole parameter
  // The cut is not along dim 0, or there is only one row, so shards may begin inside a block. State with a block codec
  // is then float32, even if there is only one shard. (Without this flag, a piece of a vector is allowed, with an
  // offset and its own blocks.)
  bool rows_cut = false;
  // Where the shard begins in each dimension; empty: at 0. Random bits follow the elements of the whole, so shards are
  // rounded like the whole.
  std::vector<int64_t> offsets = {};
};

// A parameter's gradient in one step, with the parameter's sizes. Borrowed for the call.
struct Gradient {
  const void* data = nullptr;  // nullptr: no gradient; the parameter stays unchanged. A parameter without elements
                               // counts as stepped if this is not nullptr
  DType dtype = DType::kF32;
  const int64_t* strides = nullptr;  // in elements, 0 allowed; nullptr: contiguous
};

// An update that moves a parameter in place of its rule's direction.
struct Update {
  const void* data = nullptr;  // contiguous [numel]; nullptr: the rule moves the parameter
  DType dtype = DType::kBF16;
  double scale = 1.0;  // multiplies every element, as float32
};

// A gradient norm that a device may still be computing: Optimizer::queue_clip_grad_norm.
class QueuedClip;
struct TermSums;

struct StepOptions {
  // The device queue (an in-order sycl::queue*, a cudaStream_t) on which the step is ordered. When the call returns,
  // the step is queued, and work queued there later sees the final parameters. The queue must outlive the optimizer.
  // nullptr: the backend's own (CUDA: the legacy default stream). Must be nullptr for CPU parameters.
  void* stream = nullptr;
  double grad_scale = 1.0;     // every gradient is multiplied by this (as float32) before use, e.g. 1 / loss scale
  bool assume_finite = false;  // the caller has checked the gradients, so the step does not
  // For Memory::automatic: bytes of device memory that nothing else needs, even when activations are back, including
  // memory that the allocator caches unused; -1: what the driver reports free now.
  int64_t free_bytes = -1;
  // One per parameter, or empty. A parameter with an address here and a gradient is neither read nor moved. Instead,
  // the step writes the direction that the rule would subtract from it to the address: contiguous float32 [numel],
  // without learning rate, weight decay and the parameter itself (SGD: with momentum), or zeros if the step is skipped.
  // For rules that build on this one. The memory is borrowed like parameters and must be addressable by their device.
  // Not for ballots(), and not on a queue that is being recorded.
  std::span<float* const> directions = {};
  // Computes the directions and leaves everything else unchanged: states, step counts and parameters without an
  // address. Needs assume_finite.
  bool preview = false;
  // One per parameter, or empty. The states of a parameter with an update and a gradient take their step; the parameter
  // itself becomes p - lr (scale u + weight_decay p), rounded as a step rounds it, with its master. State and parameter
  // change together: an exception leaves both, or for state on disk both of a block, as they were. The memory is
  // borrowed and must be addressable by the parameter's device. Not with directions or ballots(), not on a queue that
  // is being recorded, and only for the rules that `directions` takes.
  std::span<const Update> updates = {};
  // The result of queue_clip_grad_norm() for these gradients, unchanged since; the step also multiplies them by its
  // factor. Serves one step. On a queue that is being recorded, queue it there: each replay then clips by its own norm,
  // and its prepare_replay() takes the same grad_scale.
  std::shared_ptr<QueuedClip> clip = nullptr;
  // Only for a step that is being recorded, on CUDA. A replay that finds an infinity counts as skipped under every
  // NonFinite policy; no replay checks the gradients. queue_clip_grad_norm() with a scale measures divided gradients;
  // pass only found_inf to its step.
  LossScaling scaling = {};
  // Internal, for Prodigy: the sums over the parameters of all optimizers and processes that step together
  // (optim/term_sums.h). nullptr: over this optimizer's parameters.
  const TermSums* sums = nullptr;
};

struct StepResult {
  bool applied = true;           // false: skipped because of a non-finite gradient or (Prodigy) sum
  int64_t nonfinite_param = -1;  // the first parameter (by number) whose gradient was not finite; -1: none
  // The device checks the gradients during the step (CUDA) and has not reported yet. If one is not finite, the step
  // changes nothing: the next call that must know (a step, report(), steps(), synchronize(), save() ...) takes it out
  // of the count and, with NonFinite::kRaise, throws the error that this call would have thrown.
  bool pending = false;
};

// The norm of all gradients together, and the arguments with which the next step clips them: StepOptions with this
// grad_scale and with assume_finite = finite.
struct ClippedNorm {
  double norm = 0;          // before clipping, after the given grad_scale; NaN or infinite if a gradient is
  double grad_scale = 1.0;  // the given scale times min(1, max_norm / (norm + 1e-6)); the given scale if the norm is
                            // not finite
  bool finite = true;       // false: some gradients may be bad; the step's own check finds them
};

// The packed signs of all parameters, Optimizer::sign_count() of them. The signs of parameter i, in row-major order,
// begin at sign_offset(i). Sign s is bit s % 8 of byte s / 8, 1 for +. Block b holds the 64 signs from 64 b on; its
// presence is bit b % 8 of byte b / 8, and a block with presence 0 takes no part. The caller owns the memory, which may
// have any alignment but, for parameters on a device, must be accessible there. Borrowed for the call.
struct SignBuffer {
  std::byte* bits = nullptr;      // [sign_count() / 8]
  std::byte* presence = nullptr;  // [sign_count() / 512]
  std::byte* zeros = nullptr;     // laid out like bits, 1 for a sign that is 0; nullptr: not wanted
};

// One state of one parameter, in memory that the optimizer owns and never moves. codes and scales are nullptr if the
// state has no host memory of its own (streamed, or on a device): use read_state. A value is map[code] * scale, with
// one scale for each `block` elements of a row.
struct StateView {
  const char* name = "";   // "exp_avg", "exp_avg_sq", "momentum_buffer"; a constant
  const char* codec = "";  // "fp32", "bf16", "dynamic8"; a constant
  // The parameter's sizes, contiguous, code_bits each (4: two per byte, the first in the low half).
  void* codes = nullptr;
  // [rows][scales_per_row]; nullptr if the codec has none. (With blocks of 128, each row has an even number of scales,
  // to match its parameter's blocks of 256.)
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

// A save that runs beside steps, from Optimizer::save_async(). Copies of a handle refer to the same save. Any thread;
// may outlive the optimizer. In a forked child, which does not have the save, each call throws kInvalidArgument.
class LT_API SaveHandle {
 public:
  explicit SaveHandle(std::shared_ptr<AsyncSave> save);  // for the library

  // True once the file is written or the save has failed.
  bool done() const;
  // Waits until done() is true, for at most `seconds`; a negative number sets no limit. Returns false on timeout. If
  // the save failed, throws the error that save() would throw; an existing file is then untouched. Do not call it from
  // inside a call of the optimizer.
  bool wait(double seconds = -1) const;

  // Bytes of state that steps had to copy before the writer reached them, and the largest amount kept at once.
  int64_t copied_bytes() const;
  int64_t most_kept_bytes() const;

 private:
  std::shared_ptr<AsyncSave> save_;
};

// Waits for all saves of this process that run beside steps. exit() also waits, unless called inside their optimizers.
LT_API void finish_saves();

class LT_API Optimizer {
 public:
  // Makes an optimizer without parameters and opens its backend; the scratch file of its budget is opened when needed.
  // Throws kInvalidArgument, and kUnsupported for a backend or device that cannot be used here.
  explicit Optimizer(const OptimizerOptions& options);
  // Waits for the work queued on a device, and frees the state and the scratch files.
  ~Optimizer();
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;

  // -- Groups and parameters

  // Adds a group and returns its number, from 0. Throws kInvalidArgument on a bad value.
  int add_group(const GroupOptions& options);
  // Takes effect with the next step. Throws kInvalidArgument on a bad value, and on a value that would change which
  // states a group with parameters has: amsgrad, nesterov, centered, and whether momentum is 0 (except for SGD, whose
  // only state then appears and stays).
  void set_hyper(int group, const Hyper& hyper);
  // The reference is valid until the next add_group.
  const Hyper& hyper(int group) const;
  // As in GroupOptions and OptimizerOptions. save() does not store these: once they and the hyper-parameters are
  // restored, a loaded optimizer continues bit for bit.
  void set_rounding(int group, const std::string& rounding);
  void set_seed(uint64_t seed);
  void set_threads(int threads);
  void set_nonfinite(NonFinite policy);

  // Registers a parameter and returns its number, counted from 0 over all groups. Its state is allocated as zeros: now
  // or, under a budget, in its first step; without with_state, with its first gradient. whole: the parameter of which
  // `param` is a shard, at least as large in each dimension. Throws kInvalidArgument for element types, sizes and
  // layouts that cannot be stepped (two elements at one address), and kOutOfMemory.
  int64_t add_param(int group, const TensorView& param, bool with_state = true,
                    const std::optional<WholeParam>& whole = {});
  // Allocates the states that parameters under a budget would otherwise get in their first step. Throws like step.
  void place_states();
  // Tells the optimizer that the parameter's memory moved. Its sizes must be the same; type and strides may differ,
  // except the type of weights with a residual. State is kept.
  void rebind(int64_t param, const TensorView& view);
  int64_t param_count() const;

  // -- Stepping

  // Returns or throws what the next step would decide about these gradients, without stepping: for optimizers in
  // several processes that must agree. Counts nothing, but may allocate states.
  StepResult check(std::span<const Gradient> grads, const StepOptions& options = {});

  // Computes the norm of these gradients and whether all are finite. Reads them once; writes and keeps nothing.
  // norm_type: 2, or infinity for the largest magnitude. Sums are exact: the norm does not depend on threads, the
  // instruction set or how tensors are cut. Equals torch.nn.utils.clip_grad_norm_ with the multiplication left to the
  // step. On a device, waits for everything queued on options.stream. Throws kInvalidArgument, and kUnsupported for a
  // backend that cannot compute norms.
  ClippedNorm clip_grad_norm(std::span<const Gradient> grads, double max_norm, double norm_type = 2,
                             const StepOptions& options = {});
  // Asynchronous clip_grad_norm(). Pass the result to the next step as StepOptions::clip. Writes the norm to `norm` as
  // float32 (memory of the parameters' device, or nullptr). On CUDA nothing waits: the read is queued on
  // options.stream, and the step finds the factor on the device. The gradients must stay until the step has read them.
  // Throws like clip_grad_norm; one thread at a time, as for step().
  std::shared_ptr<QueuedClip> queue_clip_grad_norm(std::span<const Gradient> grads, double max_norm, double norm_type,
                                                   float* norm, const StepOptions& options = {});
  // Waits for a queued norm and returns it. Any thread, while the optimizer exists. Throws kDeviceLost.
  static ClippedNorm clipped(QueuedClip& clip);

  // Steps all parameters once; grads[i] belongs to parameter i. Either all parameters and states are stepped or, on a
  // non-finite gradient or any exception, none. State on disk makes two exceptions. A chunk that cannot be written
  // stays in RAM: the step is complete, and throws kIo to say so. A chunk that cannot be read, or a shortage of memory,
  // can stop the step half-way (kIo, kOutOfMemory or std::bad_alloc): each block of a parameter and its state are then
  // both as before or both as after the step, and later steps continue from there. Until the next save(), which keeps
  // one count per parameter, each block counts its own steps.
  StepResult step(std::span<const Gradient> grads, const StepOptions& options = {});

  // The number of signs of all parameters together, and the index of a parameter's first sign. Both are multiples of
  // 1024, so no two parameters share a byte. They change with the next add_param.
  int64_t sign_count() const;
  int64_t sign_offset(int64_t param) const;
  // Steps like step(), with the same guarantees, but moves no parameter: `out` gets the sign of each element's
  // direction (see StepOptions::directions; for Lion, of the interpolation). An exact zero is + if zero_is_plus. Blocks
  // of 64 zeros and parameters without a gradient have no presence. bits and presence are written whole, on a device in
  // the aligned 4-byte words that hold them; zeros must be nullptr. After a skipped step all bits are 0; after an
  // exception they are undefined.
  StepResult ballots(std::span<const Gradient> grads, const SignBuffer& out, bool zero_is_plus = true,
                     const StepOptions& options = {});
  // Moves all parameters by signs, such as a vote's result: p = p - (p lr weight_decay + lr sign), with the group's lr
  // and weight_decay, in float32 rounded to nearest. Blocks without presence keep every bit (signs.presence nullptr:
  // all are present). Needs neither gradients nor state, and counts no step: ballots() has counted it. stream: as in
  // StepOptions.
  void apply_signs(const SignBuffer& signs, void* stream = nullptr);

  // Prepares the next replay of a recorded step: a step on a queue that is being recorded (captured in a CUDA graph) is
  // not executed; replays execute it. Counts a step and queues, on options.stream, the replay's inputs: its number and
  // the current hyper-parameters. All state must be in device memory, and gradients and parameters where they were at
  // the recording. Throws kInvalidArgument if no step has been recorded, if the last prepared replay was not taken, or
  // if a replay was not prepared (it changed nothing). With kPropagate, which waits only for the replay before the
  // last, a later call may throw this instead; with a gradient check, any call that depends on the outcome does.
  StepResult prepare_replay(const StepOptions& options = {});

  // -- Averages, for rules that evaluate other weights than they train (schedulefree).

  // Moves all parameters from the training weights to the evaluation weights (true), or back (false); parameters that
  // are already there stay. A round trip rounds twice: in float32 by 2^-24 of the weight, in 16 bits by what the master
  // keeps. Saved and resumed runs compute the same bits (with master="stochastic", if at most one switch came after the
  // last step). A step, check or ballot of a parameter with evaluation weights is refused. The switch back uses the
  // same beta1. Takes up to 3 MiB where the parameters are and, for state that streams, a float32 copy
  // of the largest parameter in host memory. stream: as in StepOptions; waits for it. Throws like calls that read state
  // (kIo, kOutOfMemory ...): the optimizer knows which parameters have moved, and the next call moves the others. A
  // disk that fails while a residual is replaced has the same effect as in write_state.
  void set_evaluating(bool evaluating, void* stream = nullptr);
  bool evaluating(int64_t param) const;
  // The beta1 with which the parameter got its evaluation weights; 0: it has the training weights.
  double evaluating_beta1(int64_t param) const;
  // Declares which weights the parameter has now, without moving it. Call it after loading weights, because files hold
  // only state. beta1, in (0, 1): the one with which it got its evaluation weights; 0: the group's.
  void mark_evaluating(int64_t param, bool evaluating, double beta1 = 0);

  // -- Memory. Nothing here changes a bit of any result.

  // Takes up to `bytes` more of device memory and queues copies of the next step's streamed state into it, after the
  // work now queued on `stream` (which may just have freed the memory). Called during backward, as activations are
  // freed, it hides reads behind computation; the step gives the memory back. Does not wait. Returns the bytes taken: 0
  // if no state streams to a device, or if memory is short.
  int64_t prefetch(int64_t bytes, void* stream = nullptr);
  // Moves state out of device memory until at least `bytes` are free (or all state is out), and waits for the moves.
  // Under Memory::automatic the state returns once there has been room for a while; under other budgets it stays on the
  // host. Returns the bytes freed: 0 for parameters in host memory.
  int64_t demote(int64_t bytes);
  // offload() moves all state from RAM to the disk of its budget, or from a device to host memory; onload() moves it
  // back. Calls that need the state bring it back, too; calls that only read it (save, read_state, ...) read a device's
  // state where it is. Meanwhile, memory that StateView shows reads as zero. Both throw kInvalidArgument if a budget
  // has no disk or too little memory (nothing has moved), or kIo (the state of that budget stays where it was).
  void offload();
  void onload();
  // Waits until all queued work of steps on a device is done, including state that streams back to the host.
  void synchronize();

  // Returns counts and bytes. Waits for a pending step.
  MemoryReport report() const;
  // Returns the number of steps known to be skipped for non-finite gradients. Waits for no device.
  int64_t skipped_steps() const;

  // -- State. These calls wait for queued work on a device; arrays are the caller's host memory.

  // The states of a parameter in the rule's order; empty if it has no state yet.
  std::vector<StateView> state(int64_t param) const;
  bool has_state(int64_t param) const;
  // Allocates all states that the parameter can have, including those that its current hyper-parameters do not use
  // (SGD's momentum buffer; beside a residual, only the states in use). states_of() describes them, in the order of
  // state().
  void allocate_state(int64_t param);
  std::vector<StateInfo> states_of(int64_t param) const;
  // The codec that this parameter's state has or will have (small parameters: "fp32"); a constant.
  const char* state_codec(int64_t param) const;
  // The number of steps that this parameter has taken. Set it last when restoring state: 0 means that the state is
  // empty. The address, for views, is valid as long as the optimizer lives.
  int64_t steps(int64_t param) const;
  void set_steps(int64_t param, int64_t steps);
  const int64_t* steps_address(int64_t param) const;
  // Decodes state k to row-major float32 [numel], and encodes it from there as a step would. A round trip may change
  // dynamic8 codes (the signed map has no entry at -1); to copy state exactly, copy codes and scales.
  void export_state(int64_t param, int k, float* out) const;
  void import_state(int64_t param, int k, const float* in);
  // Copies state k as it is stored, wherever it lives: codes [numel] and scales [rows][scales_per_row] (may be nullptr
  // if the codec has none). write_state does not set steps(). If a disk failure stops it (or import_state) half-way,
  // part of the state is old: step, read_state, export_state and save refuse it until it is written or loaded again. If
  // only the write to disk fails, the state is complete and stays in RAM, and kIo says so.
  void read_state(int64_t param, int k, void* codes, float* scales) const;
  void write_state(int64_t param, int k, const void* codes, const float* scales);

  // -- Files

  // Writes all state to a file, durably and all or nothing, straight from wherever it lives: no second copy in memory.
  // metadata: any text, stored in the file. Throws kIo; an existing file is then untouched.
  // docs/project/checkpoint-format.md describes the format.
  void save(const std::string& path, const std::string& metadata = "") const;
  // Begins a save() of the current state and returns: a thread of the library writes the file while steps go on. The
  // file is, bit for bit, what save() would write now. Before a step changes state that the thread has not written yet,
  // it copies that state, chunk by chunk (in pieces of 4 MiB where state is directly addressable). Copies take at most
  // copy_bytes, or one chunk if that is more (-1: no limit); a step that finds no room waits for the thread, whose own
  // buffer takes one chunk or 4 MiB, whichever is more.
  // On any failure, and if the process is killed, an existing file is untouched. The handle's wait() throws the failure
  // or, if nobody has waited, the next save() or save_async() does, without saving; steps go on. Both wait for a
  // running save, as does the destructor; load() refuses during one. Calls that move or replace state (offload,
  // import_state, write_state, prepare_replay) wait until the rest is copied or written. Do not write to memory that
  // state() shows meanwhile.
  // Throws kInvalidArgument, kOutOfMemory (also if no thread can be started), and errors of waiting for a device.
  SaveHandle save_async(const std::string& path, const std::string& metadata = "",
                        int64_t copy_bytes = kDefaultCopyBytes) const;
  static constexpr int64_t kDefaultCopyBytes = int64_t{256} << 20;
  // Reads a file written by an optimizer with the same rule, parameters and state formats, and returns the metadata.
  // State goes where this optimizer's budget says. The whole file is checked before anything changes. Throws
  // kInvalidArgument or kIo; a disk that fails after that has the effect of a failed write_state.
  std::string load(const std::string& path);

  const char* cpu_target() const;  // the instruction set in use; a constant

 private:
  struct Impl;
  friend struct OptimizerEnv;  // for tests of the library itself
  explicit Optimizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// -- Functions without an optimizer: any thread, at any time.

// Returns the metadata of a checkpoint file. Throws like Optimizer::load.
LT_API std::string checkpoint_metadata(const std::string& path);

// Return the names of the update rules, of the state formats, and of the states that a rule keeps ("exp_avg",
// "exp_avg_sq") without options that add states. state_names throws kInvalidArgument for an unknown rule.
LT_API std::vector<std::string> rule_names();
LT_API std::vector<std::string> codec_names();
LT_API std::vector<std::string> state_names(const std::string& rule);
// The instruction sets that this CPU supports, best first: "avx512_vbmi", "avx512", "avx2", "scalar".
LT_API std::vector<std::string> cpu_targets();
LT_API const char* version();  // "0.1.0"

// Joins bfloat16 or float16 weights in host memory with their residuals to float32 out[n], and splits them again,
// rounded to nearest. Residuals depend on GroupOptions::master: int16 [n] ("residual16"), int8 [n] ("residual8"), or
// unused ("stochastic"). Both throw kInvalidArgument.
LT_API void join_master(const std::string& master, DType dtype, const void* weights, const void* residual, int64_t n,
                        float* out);
LT_API void split_master(const std::string& master, DType dtype, const float* in, int64_t n, void* weights,
                         void* residual);

}  // namespace lowtide
