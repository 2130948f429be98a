// The plug-in's side of the border: exports the plug-in's Backend, Device, Guard, QueuedClip and RecordedStep as a
// table of functions.
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "backend/border.h"
#include "lowtide/error.h"

namespace lowtide::border {

// Runs work(), and turns exceptions into the outcome.
template <class Work>
auto attempt(Outcome* outcome, Work&& work) noexcept -> decltype(work()) {
  const auto fails = [&](int32_t kind, int os_error, const char* text) {
    outcome->kind = kind, outcome->os_error = os_error;
    outcome->message.add(outcome->message.context, text);
  };
  try {
    return work();
  } catch (const Error& error) {
    fails(static_cast<int32_t>(error.kind()), error.os_error(), error.what());
  } catch (const std::bad_alloc& error) {
    fails(Outcome::kBadAlloc, 0, error.what());
  } catch (const std::exception& error) {
    fails(static_cast<int32_t>(ErrorKind::kInternal), 0, error.what());
  } catch (...) {
    fails(static_cast<int32_t>(ErrorKind::kInternal), 0, "an exception that is not a std::exception");
  }
  if constexpr (!std::is_void_v<decltype(work())>) return {};
}

// These functions convert handles to objects and back. Each handle of a shared object owns a reference.
template <class T>
T* object(Handle<T>* handle) {
  return reinterpret_cast<T*>(handle);
}
template <class T>
Handle<T>* handle(T* object) {
  return reinterpret_cast<Handle<T>*>(object);
}
template <class T>
Handle<std::shared_ptr<T>>* handle(std::shared_ptr<T> shared) {
  return shared ? handle(new std::shared_ptr<T>(std::move(shared))) : nullptr;
}
template <class T>
T result(T plain) {
  return plain;
}
inline Handle<Device>* result(Device* device) { return handle(device); }
template <class T>
Handle<std::shared_ptr<T>>* result(std::shared_ptr<T> shared) {
  return handle(std::move(shared));
}
template <class T>
decltype(auto) argument(T&& plain) {
  return std::forward<T>(plain);
}
inline Device::Event argument(Handle<Device::Event>* event) { return event ? *object(event) : nullptr; }

template <class T>
T& self(Handle<T>* handle) {
  return *object(handle);
}
template <class T>
T& self(Handle<std::shared_ptr<T>>* handle) {
  return **object(handle);
}

// Converts a method to a function of the table, with the type of the entry to which it is assigned.
template <auto Method>
struct Exported {
  template <class Result, class T, class... Arguments>
  constexpr operator Call<Result, T, Arguments...>() const {
    return [](Outcome* outcome, Handle<T>* handle, Arguments... arguments) noexcept -> Result {
      return attempt(outcome, [&]() -> Result {
        if constexpr (std::is_void_v<Result>)
          (self(handle).*Method)(argument(arguments)...);
        else
          return result((self(handle).*Method)(argument(arguments)...));
      });
    };
  }
};

inline GradientReader& reader_of(Backend& backend) {
  if (GradientReader* const reader = backend.gradient_reader()) return *reader;
  throw Error(ErrorKind::kUnsupported,
              std::string("the backend ") + backend.name() + " cannot find norms of gradients");
}

template <class T>
void release(Outcome* outcome, Handle<T>* handle) noexcept {
  attempt(outcome, [&] { delete object(handle); });
}

inline constexpr Table kTable = [] {
  using PackSigns = void (Backend::*)(std::span<const SignItem>, int, void*);
  Table table{};
  table.release = release;
  table.name = Exported<&Backend::name>{};
  table.targets = [](Outcome* outcome, Handle<Backend>* backend, Text text) noexcept {
    attempt(outcome, [&] {
      for (const std::string& target : self(backend).targets()) text.add(text.context, target.c_str());
    });
  };
  table.target = Exported<&Backend::target>{};
  table.device = Exported<&Backend::device>{};
  table.step = Exported<&Backend::step>{};
  table.norms = Exported<&Backend::norms>{};
  table.sum_terms = Exported<&Backend::sum_terms>{};
  table.norm_sums = Exported<&Backend::norm_sums>{};
  table.add_norms = Exported<&Backend::add_norms>{};
  table.first_nonfinite = Exported<&Backend::first_nonfinite>{};
  table.queue_guard = Exported<&Backend::queue_guard>{};
  table.record_step = Exported<&Backend::record_step>{};
  table.read_gradients = [](Outcome* outcome, Handle<Backend>* backend, Items<const StepItem> items,
                            void* stream) noexcept {
    return attempt(outcome, [&] { return reader_of(self(backend)).read_gradients(items, stream); });
  };
  table.queue_clip = [](Outcome* outcome, Handle<Backend>* backend, Items<const StepItem> items,
                        const kernels::ClipTo& to, float* norm, void* stream) noexcept {
    return attempt(outcome, [&] { return handle(reader_of(self(backend)).queue_clip(items, to, norm, stream)); });
  };
  table.clipped_guard = [](Outcome* outcome, Handle<Backend>* backend, Items<const StepItem> items,
                           Handle<Table::SharedClip>* clip, double scale, bool searches, const LossScaling& scaling,
                           void* stream) noexcept {
    return attempt(outcome, [&] {
      GradientReader& reader = reader_of(self(backend));
      const std::shared_ptr<QueuedClip> none;
      return handle(reader.queue_clipped_guard(items, clip ? *object(clip) : none, scale, searches, scaling, stream));
    });
  };
  table.decode = Exported<&Backend::decode>{};
  table.encode = Exported<&Backend::encode>{};
  table.pack_signs = Exported<static_cast<PackSigns>(&Backend::pack_signs)>{};
  table.unpack_signs = Exported<static_cast<PackSigns>(&Backend::unpack_signs)>{};
  table.vote_signs = Exported<&Backend::vote_signs>{};
  table.count_signs = Exported<&Backend::count_signs>{};
  table.apply_signs = Exported<&Backend::apply_signs>{};
  table.feedback = Exported<&Backend::feedback>{};

  table.guard_release = release;
  table.guard_own = [](Outcome*, Handle<Table::SharedGuard>* guard) noexcept { return &self(guard); };
  table.guard_first = Exported<&Guard::first>{};
  table.guard_word = Exported<&Guard::word>{};

  table.clip_release = release;
  table.clip_wait = Exported<&QueuedClip::wait>{};

  table.recording_release = release;
  table.recording_prepare = Exported<&RecordedStep::prepare>{};
  table.recording_all_prepared = Exported<&RecordedStep::all_prepared>{};
  table.recording_was_replayed = Exported<&RecordedStep::was_replayed>{};

  table.device_limits = Exported<&Device::limits>{};
  table.device_allocate = Exported<&Device::allocate>{};
  table.device_free = Exported<&Device::free>{};
  table.device_make_queue = Exported<&Device::make_queue>{};
  table.device_copy = Exported<&Device::copy>{};
  table.device_fill = Exported<&Device::fill>{};
  table.device_prefetch = Exported<&Device::prefetch>{};
  table.device_record = Exported<&Device::record>{};
  table.device_wait = Exported<&Device::wait>{};
  table.device_host_wait = Exported<&Device::host_wait>{};
  table.device_has_happened = Exported<&Device::has_happened>{};
  table.event_release = release;
  table.device_steps_pinned = Exported<&Device::steps_pinned>{};
  table.device_pages_shared = Exported<&Device::pages_shared>{};
  table.device_is_capturing = Exported<&Device::is_capturing>{};
  table.device_describe = [](Outcome* outcome, Handle<Device>* device, Text text) noexcept {
    attempt(outcome, [&] { text.add(text.context, self(device).describe().c_str()); });
  };
  table.device_is_lost = Exported<&Device::is_lost>{};
  table.device_use_allocator = Exported<&Device::use_allocator>{};
  table.device_trust_memory = Exported<&Device::trust_memory>{};
  return table;
}();

// Returns the exports of a plug-in. `Devices` is int(std::string* text), like Exports::devices; `Open` returns a
// std::unique_ptr<Backend> from (const char* target, void* queue). Both functions may throw.
template <auto Devices, auto Open>
const Exports* exports() {
  static const Exports all{
      LOWTIDE_VERSION,
      digest,
      &kTable,
      [](Outcome* outcome, Text text) noexcept -> int32_t {
        return attempt(outcome, [&] {
          std::string words;
          const int count = Devices(&words);
          text.add(text.context, words.c_str());
          return count;
        });
      },
      [](Outcome* outcome, const char* target, void* queue) noexcept {
        return attempt(outcome, [&] { return handle(std::unique_ptr<Backend>(Open(target, queue)).release()); });
      },
  };
  return &all;
}

// Defines the plug-in's exported function.
#define LT_EXPORT_PLUGIN(backend, devices, open)                               \
  extern "C" LT_API const ::lowtide::border::Exports* lt_##backend##_plugin(); \
  const ::lowtide::border::Exports* lt_##backend##_plugin() { return ::lowtide::border::exports<devices, open>(); }

}  // namespace lowtide::border
