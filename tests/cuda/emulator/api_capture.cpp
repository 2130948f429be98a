// Capture of streams, and graphs of what was captured.
#include <algorithm>

#include "machine.h"

using namespace cuda_emulator;

namespace cuda_emulator {

bool safe_in_capture(Machine& machine) {
  const HostThread& thread = host_thread();
  if (thread.mode == cudaStreamCaptureModeRelaxed) return true;
  bool safe = true;
  std::erase_if(machine.captures, [](const auto& weak) { return weak.expired() || weak.lock()->ended; });
  for (const auto& weak : machine.captures) {
    const CaptureRef capture = weak.lock();
    const bool own = capture->thread == std::this_thread::get_id();
    const bool forbids =
        own ? capture->mode != cudaStreamCaptureModeRelaxed
            : thread.mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
    if (forbids) safe = capture->valid = false;
  }
  return safe;
}

cudaError_t wait_in_capture(Stream& stream, Event& event) {
  if (stream.capture && !stream.capture->valid) return cudaErrorStreamCaptureInvalidated;
  if (!event.capture) {
    stream.capture->valid = false;
    return cudaErrorStreamCaptureIsolation;
  }
  if (event.capture->ended) return cudaErrorCapturedEvent;
  if (stream.legacy) {
    event.capture->valid = false;
    return cudaErrorStreamCaptureImplicit;
  }
  if (stream.capture && stream.capture != event.capture) {
    stream.capture->valid = event.capture->valid = false;
    return cudaErrorStreamCaptureMerge;
  }
  stream.capture = event.capture;
  for (const size_t node : event.tail)
    if (std::find(stream.tail.begin(), stream.tail.end(), node) == stream.tail.end()) stream.tail.push_back(node);
  return cudaSuccess;
}

}  // namespace cuda_emulator

namespace {

// Every node is one that the origin's next would follow.
bool is_joined(const Capture& capture, const std::vector<size_t>& tail) {
  std::vector<char> seen(capture.nodes.size());
  std::vector<size_t> rest = tail;
  while (!rest.empty()) {
    const size_t node = rest.back();
    rest.pop_back();
    if (seen[node]) continue;
    seen[node] = 1;
    rest.insert(rest.end(), capture.nodes[node].after.begin(), capture.nodes[node].after.end());
  }
  return std::count(seen.begin(), seen.end(), 0) == 0;
}

cudaError_t end(Machine& machine, Stream& stream, cudaGraph_t* graph) {
  const CaptureRef capture = stream.capture;
  if (!capture) return cudaErrorIllegalState;
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
    return cudaErrorStreamCaptureWrongThread;
  if (capture->origin != &stream) {
    capture->valid = false;
    return cudaErrorStreamCaptureUnmatched;
  }
  capture->ended = true;
  const bool joined = is_joined(*capture, stream.tail);
  for (const auto& [handle, other] : machine.streams)
    if (other->capture == capture) other->capture = nullptr, other->tail.clear();
  if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
  if (!joined) return cudaErrorStreamCaptureUnjoined;
  *graph = new_handle<cudaGraph_t>(machine);
  machine.graphs[*graph] = std::make_shared<const std::vector<Node>>(std::move(capture->nodes));
  return cudaSuccess;
}

// The nodes in a random order of those that are allowed.
void run_nodes(Machine& machine, const std::vector<Node>& nodes) {
  std::vector<char> done(nodes.size());
  for (size_t left = nodes.size(); left > 0; --left) {
    std::vector<size_t> ready;
    for (size_t i = 0; i < nodes.size(); ++i)
      if (!done[i] && std::all_of(nodes[i].after.begin(), nodes[i].after.end(), [&](size_t n) { return done[n]; }))
        ready.push_back(i);
    const size_t next = ready[machine.random.below(static_cast<uint32_t>(ready.size()))];
    machine.execute(nodes[next].work);
    done[next] = 1;
  }
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", kPlain, [&](Machine& machine) {
    Stream* stream = machine.stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->legacy) return cudaErrorStreamCaptureUnsupported;
    if (stream->capture) return cudaErrorIllegalState;
    stream->capture = std::make_shared<Capture>();
    stream->capture->mode = mode, stream->capture->thread = std::this_thread::get_id();
    stream->capture->origin = stream;
    machine.captures.push_back(stream->capture);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return call("cudaStreamEndCapture", kPlain, [&](Machine& machine) {
    Stream* stream = machine.stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!graph) return cudaErrorInvalidValue;
    *graph = nullptr;
    return end(machine, *stream, graph);
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return call("cudaStreamIsCapturing", kPlain, [&](Machine& machine) {
    const Stream* stream = machine.stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!status) return cudaErrorInvalidValue;
    *status = cudaStreamCaptureStatusNone;
    if (stream->legacy)
      for (const auto& [key, other] : machine.streams)
        if (other->capture && other->blocking && other->device == stream->device) return cudaErrorStreamCaptureImplicit;
    if (stream->capture)
      *status = stream->capture->valid ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call("cudaThreadExchangeStreamCaptureMode", kWithoutContext, [&](Machine&) {
    if (!mode) return cudaErrorInvalidValue;
    std::swap(*mode, host_thread().mode);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return call("cudaGraphInstantiate", kPlain, [&](Machine& machine) {
    const auto it = machine.graphs.find(graph);
    if (!executable || it == machine.graphs.end() || flags) return cudaErrorInvalidValue;
    *executable = new_handle<cudaGraphExec_t>(machine);
    machine.executables[*executable] = it->second;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  return call("cudaGraphLaunch", kPlain, [&](Machine& machine) {
    Stream* stream = machine.stream(handle);
    const auto it = machine.executables.find(executable);
    if (!stream || it == machine.executables.end()) return cudaErrorInvalidResourceHandle;
    ++machine.counters.graph_launches;
    Work work;
    work.kind = Work::Kind::kGraph, work.device = stream->device;
    work.name = "a graph of " + std::to_string(it->second->size()) + " nodes";
    work.run = [&machine, nodes = it->second] { run_nodes(machine, *nodes); };
    return machine.enqueue(*stream, std::move(work));
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return call("cudaGraphExecDestroy", kPlain, [&](Machine& machine) {
    return machine.executables.erase(executable) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call("cudaGraphDestroy", kPlain,
              [&](Machine& machine) { return machine.graphs.erase(graph) ? cudaSuccess : cudaErrorInvalidValue; });
}
