// The border between the library and its plug-ins, which may be built with different compilers and C++ libraries. Only
// plain data and functions cross the border, no exceptions and no virtual calls. Each side frees its own allocations.
//
// Items cross unchanged, without a copy, because all compilers of a platform lay out structs alike. From the standard
// library they contain std::span and, in Layout, std::vector. Their members have the same layout in libstdc++ and
// libc++ (a pointer and a count; three pointers), but nothing guarantees this. So both sides compute digest() of an
// object that one side made, and a plug-in with a different result is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>

#include "backend/gradient_reader.h"
#include "backend/term_sums.h"
#include "lowtide/hyper.h"

namespace lowtide::border {

// Where the callee puts texts. `add` copies a text and never fails.
struct Text {
  void* context;
  void (*add)(void* context, const char* text) noexcept;
};

// How a call ended. `kind` is an ErrorKind or one of the constants.
struct Outcome {
  static constexpr int32_t kDone = 0, kBadAlloc = -1;  // kBadAlloc: std::bad_alloc
  int32_t kind = kDone, os_error = 0;
  Text message;
};

// An object of type T that the plug-in owns.
template <class T>
struct Handle;

template <class T>
struct Items {
  T* data;
  size_t count;
  Items(std::span<T> items) : data(items.data()), count(items.size()) {}
  operator std::span<T>() const { return {data, count}; }
};

template <class Result, class T, class... Arguments>
using Call = Result (*)(Outcome*, Handle<T>*, Arguments...) noexcept;

// Each entry has the effect and arguments of its namesake in backend.h, gradient_reader.h or device.h. After a failure
// the result is meaningless. Returned texts live as long as the backend.
struct Table {
  using Event = std::shared_ptr<void>;  // like Device::Event; nullptr crosses as nullptr
  using SharedGuard = std::shared_ptr<Guard>;
  using SharedClip = std::shared_ptr<QueuedClip>;
  using SharedRecording = std::shared_ptr<RecordedStep>;

  // Functions of Backend.
  Call<void, Backend> release;
  Call<const char*, Backend> name;
  Call<void, Backend, Text> targets;  // adds the names one after another
  Call<const char*, Backend> target;
  Call<Handle<Device>*, Backend> device;
  Call<void, Backend, Items<const StepItem>, int, bool, void*> step;
  Call<void, Backend, Items<const StepItem>, int, Items<BlockNorms>, void*> norms;
  Call<void, Backend, Items<const StepItem>, int, TermSums&, void*> sum_terms;
  Call<kernels::NormSums*, Backend, int64_t> norm_sums;
  Call<void, Backend, Items<const StepItem>, void*> add_norms;
  Call<int64_t, Backend, Items<const StepItem>, int, void*> first_nonfinite;
  Call<Handle<SharedGuard>*, Backend, Items<const StepItem>, void*> queue_guard;
  Call<Handle<SharedRecording>*, Backend, Items<const StepItem>, bool, void*> record_step;
  // Functions of the backend's GradientReader.
  Call<kernels::Sums, Backend, Items<const StepItem>, void*> read_gradients;
  Call<Handle<SharedClip>*, Backend, Items<const StepItem>, const kernels::ClipTo&, float*, void*> queue_clip;
  Call<Handle<SharedGuard>*, Backend, Items<const StepItem>, Handle<SharedClip>*, double, bool, const LossScaling&,
       void*>
      clipped_guard;
  Call<void, Backend, const CodecItem&, void*> decode, encode;
  Call<void, Backend, Items<const SignItem>, int, void*> pack_signs, unpack_signs;
  Call<void, Backend, const VoteItem&, int, void*> vote_signs;
  Call<void, Backend, const CountItem&, int, void*> count_signs;
  Call<void, Backend, Items<const ApplyItem>, int, void*> apply_signs;
  Call<void, Backend, Items<const FeedbackItem>, int, void*> feedback;

  // Functions of Guard. guard_own returns the form that the plug-in's steps take in StepItem::guard.
  Call<void, SharedGuard> guard_release;
  Call<Guard*, SharedGuard> guard_own;
  Call<int64_t, SharedGuard> guard_first;
  Call<const uint32_t*, SharedGuard> guard_word;

  // Functions of QueuedClip.
  Call<void, SharedClip> clip_release;
  Call<kernels::Clip, SharedClip> clip_wait;

  // Functions of RecordedStep.
  Call<void, SharedRecording> recording_release;
  Call<void, SharedRecording, Items<const StepItem>, void*> recording_prepare;
  Call<bool, SharedRecording> recording_all_prepared, recording_was_replayed;

  // Functions of Device, which its backend owns.
  Call<Device::Limits, Device> device_limits;
  Call<void*, Device, MemoryKind, int64_t> device_allocate;
  Call<void, Device, void*> device_free;
  Call<void*, Device> device_make_queue;
  Call<void, Device, void*, void*, const void*, int64_t> device_copy;
  Call<void, Device, void*, void*, uint32_t, int, int64_t> device_fill;
  Call<void, Device, void*, const void*, int64_t> device_prefetch;
  Call<Handle<Event>*, Device, void*> device_record;
  Call<void, Device, void*, Handle<Event>*> device_wait;
  Call<void, Device, Handle<Event>*> device_host_wait;
  Call<bool, Device, Handle<Event>*> device_has_happened;
  Call<void, Event> event_release;
  Call<bool, Device> device_steps_pinned, device_pages_shared;
  Call<bool, Device, void*> device_is_capturing;
  Call<void, Device, Text> device_describe;
  Call<bool, Device> device_is_lost;
  Call<void, Device, const Device::Allocator&> device_use_allocator;
  Call<void, Device> device_trust_memory;
};

// One object of each type that has members from the standard library.
struct Sample {
  const Layout& layout;
  const VoteItem& vote;
  const CountItem& count;
  const FeedbackItem& feedback;
};

// Returns a hash of this side's layout of the sample and of the sizes of everything that crosses the border.
inline uint64_t digest(const Sample& sample) {
  uint64_t digest = 0;
  const auto add = [&](std::initializer_list<uint64_t> words) {
    for (const uint64_t word : words) digest = (digest ^ word) * 0x100000001b3 + (digest >> 29);
  };
  const auto add_each = [&](const auto&... arrays) {
    (add({reinterpret_cast<uintptr_t>(arrays.data()), arrays.size()}), ...);
  };
  add({sizeof(Table), sizeof(StepItem), sizeof(Layout), sizeof(BallotTarget), sizeof(BlockNorms), sizeof(CodecItem)});
  add({sizeof(SignItem), sizeof(VoteItem), sizeof(CountItem), sizeof(ApplyItem), sizeof(FeedbackItem), kMaxStates});
  add({sizeof(kernels::Sums), sizeof(kernels::ClipTo), sizeof(kernels::Clip), sizeof(LossScaling),
       sizeof(kernels::NormSums), sizeof(TermSums), sizeof(Hyper)});
  add_each(sample.layout.sizes, sample.layout.strides);
  add_each(sample.vote.ballots, sample.vote.weights, sample.vote.presence);
  add_each(sample.count.ballots, sample.count.weights, sample.count.planes);
  add_each(sample.feedback.ballots, sample.feedback.ballot_scales, sample.feedback.weights);
  return digest;
}

// A plug-in exports `const Exports* lt_<backend>_plugin()`, which lives as long as the plug-in. The first two members
// never move, so that plug-ins of all versions can be told apart.
struct Exports {
  const char* version;  // the project's version, like version()
  uint64_t (*digest)(const Sample&);
  const Table* table;
  // Writes the runtime's version and the usable devices as text, and returns the number of devices.
  int32_t (*devices)(Outcome*, Text) noexcept;
  // Opens a backend; `target` and `queue` are those of open_backend (registry.h).
  Handle<Backend>* (*open)(Outcome*, const char* target, void* queue) noexcept;
};

}  // namespace lowtide::border
