#include "runtime.h"

#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

namespace ptx {
namespace {

Policy policy_of_environment() {
  Policy out;
  const char* choice = std::getenv("LT_PTX_CHOICE");
  const std::string name = choice ? choice : "nearest";
  out.choice = name == "lowest"    ? Choice::kLowest
               : name == "highest" ? Choice::kHighest
               : name == "random"  ? Choice::kRandom
                                   : Choice::kNearest;
  return out;
}

// The kernels of this library or program.
class Kernels {
 public:
  static Kernels& get() {
    // Never destroyed: registrations come before, and launches may come after, all other objects.
    static auto& kernels = *new Kernels;
    return kernels;
  }

  void add(const void* stub, const char* name) { names_[stub] = name; }

  const Program& find(const void* stub) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto name = names_.find(stub);
    if (name == names_.end()) throw Error("a launch of what is no kernel");
    auto& program = programs_[name->second];
    if (!program) {
      read_sources();
      for (const auto& source : sources_)
        if (const Function* function = source->find(name->second); function && function->is_entry) {
          if (program) throw Error("two kernels are named " + name->second);
          program = decode(*source, *function);
        }
      if (!program) throw Error("no PTX of " + name->second);
    }
    return *program;
  }

  void edit(std::function<std::string(const std::string&)> with) {
    const std::lock_guard<std::mutex> lock(mutex_);
    edit_ = std::move(with);
    programs_.clear(), sources_.clear();
  }

  // A line for each kernel that has run, and one for each line of text that has.
  void write_coverage(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    std::ofstream out(folder / (std::to_string(::getpid()) + "-" + std::to_string(names_.size()) + ".txt"));
    for (const auto& [name, program] : programs_) {
      if (!program || !program->launches) continue;
      out << "kernel " << program->file << " " << name << " " << program->launches << "\n";
      uint32_t last = 0;
      for (const Instruction& at : program->code)
        if (at.seen && at.line != last) out << "line " << (last = at.line) << "\n";
    }
  }

 private:
  void read_sources() {
    if (!sources_.empty()) return;
    const char* set = std::getenv("LT_PTX_FOLDER");
    const std::string folder = set ? set : LT_PTX_FOLDER;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() != ".ptx") continue;
      std::stringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      sources_.push_back(std::make_unique<Source>(edit_ ? edit_(text.str()) : text.str(), entry.path().filename()));
    }
    if (sources_.empty()) throw Error("no PTX in " + folder);
  }

  std::mutex mutex_;
  std::map<const void*, std::string> names_;
  std::map<std::string, std::unique_ptr<Program>> programs_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::function<std::string(const std::string&)> edit_;
};

Work& work() {
  static Work all;
  return all;
}

std::function<void(const Launched&)>& observer() {
  static std::function<void(const Launched&)> now;
  return now;
}

cuda_emulator::Failure run(const Program& program, const std::vector<std::byte>& parameters, size_t dynamic_bytes,
                           const cuda_emulator::Grid& grid) {
  Policy how = policy();
  how.seed = grid.seed;
  const Find find = [&](uint64_t address) {
    const auto [begin, end] = grid.find_memory(address);
    return Range{begin, end};
  };
  if (observer()) observer()({program.name, parameters, grid.blocks.x, grid.threads.x, dynamic_bytes, find});
  try {
    const Work done = run_grid(program, parameters, grid.blocks.x, grid.threads.x, find, how);
    work().warp_instructions += done.warp_instructions, work().thread_instructions += done.thread_instructions;
  } catch (const Failure& failure) {
    return {failure.is_of_address ? cudaErrorIllegalAddress : cudaErrorLaunchFailure, failure.what()};
  }
  return {};
}

// Nobody who launches expects an exception.
[[noreturn]] void stop(const Error& error) {
  std::fprintf(stderr, "PTX executor: %s\n", error.what());
  std::abort();
}

}  // namespace

Policy& policy() {
  static Policy now = policy_of_environment();
  return now;
}

const Work& work_done() { return work(); }

void edit_sources(std::function<std::string(const std::string& text)> edit) { Kernels::get().edit(std::move(edit)); }

void observe(std::function<void(const Launched&)> with) { observer() = std::move(with); }

}  // namespace ptx

// CUDA's names, hidden: no other library of the process may get them.
extern "C" {
#define LT_HIDDEN __attribute__((visibility("hidden")))
LT_HIDDEN void** __cudaRegisterFatBinary(void*);
LT_HIDDEN void __cudaRegisterFatBinaryEnd(void**);
LT_HIDDEN void __cudaUnregisterFatBinary(void**);
LT_HIDDEN void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, void*, void*, void*,
                                      void*, int*);
LT_HIDDEN cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*);
LT_HIDDEN cudaError_t __cudaGetKernel(const void**, const void*);
LT_HIDDEN cudaError_t __cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t);
LT_HIDDEN cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub, void** arguments);
LT_HIDDEN cudaError_t lt_ptx_attributes(cudaFuncAttributes*, const void*) __asm__("cudaFuncGetAttributes");
LT_HIDDEN cudaError_t lt_ptx_last_error() __asm__("cudaGetLastError");
LT_HIDDEN cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int*, const void*, int, size_t, unsigned);

void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  if (const char* folder = std::getenv("LT_PTX_COVERAGE"); folder && !handle)
    std::atexit([] {
      try {
        ptx::Kernels::get().write_coverage(std::getenv("LT_PTX_COVERAGE"));
      } catch (const std::exception& error) {
        std::fprintf(stderr, "PTX executor: %s\n", error.what());
      }
    });
  handle = &handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, void*, void*, void*, void*, int*) {
  ptx::Kernels::get().add(stub, name);
}

// Launches with <<<>>> would call these; nothing does.
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaErrorNotSupported; }
cudaError_t __cudaGetKernel(const void**, const void*) { return cudaErrorNotSupported; }
cudaError_t __cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) { return cudaErrorNotSupported; }

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub, void** arguments) {
  try {
    const ptx::Program& program = ptx::Kernels::get().find(stub);
    std::vector<std::byte> bytes(program.parameter_bytes);
    for (size_t i = 0; i < program.parameters.size(); ++i)
      std::memcpy(bytes.data() + program.parameter_offsets[i], arguments[i], program.parameters[i].bytes);
    return cuda_emulator::launch_grid(
        config, stub, bytes.size(),
        [&program, bytes, dynamic_bytes = config->dynamicSmemBytes](const cuda_emulator::Grid& grid) {
          return ptx::run(program, bytes, dynamic_bytes, grid);
        });
  } catch (const ptx::Error& error) {
    ptx::stop(error);
  }
}

cudaError_t lt_ptx_attributes(cudaFuncAttributes* out, const void* stub) {
  return cuda_emulator::attributes(out, stub);
}
cudaError_t lt_ptx_last_error() { return cudaGetLastError(); }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* stub, int threads,
                                                                   size_t dynamic_bytes, unsigned) {
  return cuda_emulator::occupancy(blocks, stub, threads, dynamic_bytes);
}
}
