// Streams and events.
#include "machine.h"

using namespace cuda_emulator;

namespace {

Work mark(int device, const char* name) {
  Work work;
  work.device = device, work.name = name;
  return work;
}

cudaError_t invalidate(Capture& capture, cudaError_t error) {
  capture.valid = false;
  return error;
}

cudaError_t wait(Machine& machine, Stream& stream, Event& event) {
  ++machine.counters.waits;
  if (stream.capture || event.capture) return wait_in_capture(stream, event);
  if (!event.record || event.record->done) return cudaSuccess;
  return machine.enqueue(stream, mark(stream.device, "a wait"), {event.record});
}

cudaError_t record(Machine& machine, Event& event, Stream& stream) {
  if (event.device != stream.device) return cudaErrorInvalidResourceHandle;
  ++machine.counters.records;
  if (stream.capture) {
    if (!stream.capture->valid) return cudaErrorStreamCaptureInvalidated;
    event.record = nullptr, event.capture = stream.capture, event.tail = stream.tail;
    return cudaSuccess;
  }
  const cudaError_t error = machine.enqueue(stream, mark(stream.device, "a record"));
  if (error == cudaSuccess) event.record = stream.last, event.capture = nullptr, event.tail.clear();
  return error;
}

}  // namespace

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return call("cudaStreamCreateWithFlags", kPlain, [&](Machine& machine) {
    if (!stream || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    auto made = std::make_unique<Stream>();
    made->device = host_thread().present(), made->blocking = flags != cudaStreamNonBlocking;
    *stream = new_handle<cudaStream_t>(machine);
    machine.streams[*stream] = std::move(made);
    return cudaSuccess;
  });
}

// Work that is queued on the stream stays queued.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return call("cudaStreamDestroy", kPlain, [&](Machine& machine) {
    Stream* stream = machine.stream(handle);
    if (!stream || stream->legacy) return cudaErrorInvalidResourceHandle;
    if (stream->capture) invalidate(*stream->capture, cudaSuccess);
    stream->destroyed = true;
    if (stream->queue.empty()) machine.streams.erase(handle);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return call("cudaStreamSynchronize", kUnsafeInCapture | kSynchronizes, [&](Machine& machine) {
    Stream* stream = machine.stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return invalidate(*stream->capture, cudaErrorStreamCaptureUnsupported);
    if (stream->legacy) {
      const cudaError_t error = machine.enqueue(*stream, mark(stream->device, "a synchronization"));
      if (error != cudaSuccess) return error;
    }
    machine.force(stream->last);
    return cudaSuccess;
  });
}

// Sometimes something runs meanwhile, as in cudaEventQuery.
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return call("cudaStreamQuery", kUnsafeInCapture, [&](Machine& machine) {
    Stream* stream = machine.stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return invalidate(*stream->capture, cudaErrorStreamCaptureUnsupported);
    if (!stream->queue.empty() && machine.random.chance(0.5)) machine.progress();
    return stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned int flags) {
  return call("cudaStreamWaitEvent", kPlain, [&](Machine& machine) {
    Stream* stream = machine.stream(handle);
    Event* event = machine.event(event_handle);
    if (!stream || !event) return cudaErrorInvalidResourceHandle;
    return flags ? cudaErrorInvalidValue : wait(machine, *stream, *event);
  });
}

cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  return call("cudaStreamGetDevice", kPlain, [&](Machine& machine) {
    Stream* stream = machine.stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!device) return cudaErrorInvalidValue;
    // The manual does not say so: observed on an H100, with driver 580.159 and CUDA 13.0, in each mode of capture.
    if (stream->capture) return invalidate(*stream->capture, cudaErrorStreamCaptureUnsupported);
    *device = stream->device;
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return call("cudaEventCreateWithFlags", kPlain, [&](Machine& machine) {
    if (!event || flags > (cudaEventBlockingSync | cudaEventDisableTiming)) return cudaErrorInvalidValue;
    auto made = std::make_unique<Event>();
    made->device = host_thread().present();
    *event = new_handle<cudaEvent_t>(machine);
    machine.events[*event] = std::move(made);
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event_handle, cudaStream_t handle) {
  return call("cudaEventRecord", kPlain, [&](Machine& machine) {
    Stream* stream = machine.stream(handle);
    Event* event = machine.event(event_handle);
    return stream && event ? record(machine, *event, *stream) : cudaErrorInvalidResourceHandle;
  });
}

// Sometimes something runs meanwhile, so that who asks often enough sees it happen.
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return call("cudaEventQuery", kUnsafeInCapture, [&](Machine& machine) {
    const Event* event = machine.event(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    if (event->capture) return cudaErrorCapturedEvent;
    if (event->record && !event->record->done && machine.random.chance(0.5)) machine.progress();
    return !event->record || event->record->done ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return call("cudaEventSynchronize", kUnsafeInCapture, [&](Machine& machine) {
    const Event* event = machine.event(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    if (event->capture) return cudaErrorCapturedEvent;
    if (event->record && !event->record->done) ++machine.counters.synchronizing;
    machine.force(event->record);
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return call("cudaEventDestroy", kPlain, [&](Machine& machine) {
    return machine.events.erase(handle) ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}
