// The part of CUDA 13's driver and runtime library that TVM uses, for a GPU that is not there. Kernels are shared
// objects of cuda_on_cpu/nvcc.py and run on the CPU at once; what they do to the context shows at the next call, as with
// a GPU, which runs them later. Memory of the device is memory of this process that the kernels alone may use.
#include "gpu.h"

#include <dlfcn.h>
#include <elf.h>

#include <string>

struct Module { void* library; int file; std::map<std::string, Function> functions; };
struct Event { double secs; };
using Graph = std::vector<std::function<void()>>;
// Does something on a stream: now, or whenever the graph is launched that is being captured.
static void enqueue(std::function<void()> work) {
  if (context.captured) context.captured->push_back(std::move(work));
  else work();
}

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid[3], block[3], shared_bytes;
  void *stream, *attributes;
  unsigned attribute_count;
};
struct CudaDeviceProp {  // the beginning of it
  char name[256], uuid[16], luid[8];
  unsigned luid_mask;
  size_t total_bytes, shared_bytes;
};

extern "C" {
int cuGetErrorName(int number, const char** name) { *name = error_of(number).driver; return 0; }
int cuGetErrorString(int number, const char** text) { *text = error_of(number).text; return 0; }
const char* cudaGetErrorName(int number) { return error_of(number).runtime; }
const char* cudaGetErrorString(int number) { return error_of(number).text; }
int cudaGetLastError() { return context.lost_by ? context.lost_by : std::exchange(last_error, 0); }
int cudaPeekAtLastError() { return context.lost_by ? context.lost_by : last_error; }

int cudaGetDeviceCount(int* count) {
  int error = initialized();
  *count = !error;
  return kept(error);
}
int cudaGetDevice(int* number) { *number = 0; return kept(initialized()); }
int cudaSetDevice(int number) { return kept(number ? 101 : with_context()); }
int cuDeviceGetName(char* name, int size, int) {
  int error = initialized();
  if (!error) strncpy(name, "Emulated GPU", size);
  return error;
}
int cudaDeviceGetAttribute(int* value, int attribute, int) {
  int error = initialized();
  if (error) return kept(error);
  switch (attribute) {
    case 1: case 2: case 3: *value = most_threads; return 0;
    case 4: *value = 64; return 0;
    case 5: *value = 0x7fffffff; return 0;
    case 6: case 7: *value = 0xffff; return 0;
    case 8: *value = most_shared; return 0;
    case 10: *value = 32; return 0;
    case 12: *value = 65536; return 0;
    case 13: *value = 1000000; return 0;  // kHz
    case 16: *value = int(gpu->multiprocessors); return 0;
    case 38: *value = 4 << 20; return 0;
    case 75: *value = 8; return 0;
    case 76: *value = 9; return 0;
    case 97: *value = most_dynamic_shared; return 0;
    default: return kept(1);
  }
}
int cudaGetDeviceProperties(CudaDeviceProp* found, int) {
  int error = initialized();
  if (error) return kept(error);
  memset(found, 0, sizeof *found);
  strcpy(found->name, "Emulated GPU");
  found->total_bytes = gpu->memory_bytes;
  found->shared_bytes = most_shared;
  return 0;
}

int cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  int error = with_context();
  if (error) return kept(error);
  *total_bytes = gpu->memory_bytes;
  *free_bytes = gpu->memory_bytes - context.used;
  return 0;
}
int cudaMalloc(void** at, size_t bytes) {
  int error = with_context();
  if (error) return kept(error);
  *at = nullptr;
  if (!bytes) return 0;
  size_t whole = (bytes + page - 1) / page * page;
  if (whole > size_t(gpu->memory_bytes) - context.used || whole > arena_bytes - context.end) return kept(2);
  char* begin = context.arena + context.end;
  if (mprotect(begin, whole, PROT_READ | PROT_WRITE)) return kept(2);
  context.end += (whole + 2 * granule - 1) / granule * granule;  // there is nothing between two blocks
  context.blocks[begin] = whole;
  context.used += whole;
  memset(begin, 0xFF, whole < garbage_bytes ? whole : garbage_bytes);
  *at = begin;
  return 0;
}
int cudaFree(void* at) {
  int error = with_context();
  if (error || !at) return kept(error);
  auto block = context.blocks.find(static_cast<char*>(at));
  if (block == context.blocks.end()) return kept(1);
  madvise(at, block->second, MADV_REMOVE);
  mprotect(at, block->second, PROT_NONE);
  context.used -= block->second;
  context.blocks.erase(block);
  return 0;
}
int cudaMallocHost(void** at, size_t bytes) {
  int error = with_context();
  if (!error && !(*at = malloc(bytes))) error = 2;
  return kept(error);
}
int cudaFreeHost(void* at) { free(at); return kept(with_context()); }
int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void*) {
  int error = with_context();
  if (error) return kept(error);
  bool to_device = kind == 1 || kind == 3, from_device = kind == 2 || kind == 3;
  if ((to_device && !holds(to, bytes)) || (from_device && !holds(from, bytes))) return kept(1);
  enqueue([=] { memmove(to, from, bytes); });
  return 0;
}
int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void* stream) {
  return cudaMemcpyAsync(to, from, bytes, 3, stream);
}

int cudaStreamCreate(void** stream) {
  int error = with_context();
  if (!error) *stream = malloc(1);
  return kept(error);
}
int cudaStreamCreateWithFlags(void** stream, unsigned) { return cudaStreamCreate(stream); }
int cudaStreamDestroy(void* stream) { free(stream); return kept(with_context()); }
int cudaStreamSynchronize(void*) {
  int error = with_context();
  return kept(error ? error : context.captured ? 900 : 0);
}
int cudaStreamWaitEvent(void*, void*, unsigned) { return kept(with_context()); }
int cudaStreamBeginCapture(void*, int) {
  int error = with_context();
  if (!error) context.captured = new Graph;
  return kept(error);
}
int cudaStreamEndCapture(void*, void** graph) {
  int error = with_context();
  *graph = std::exchange(context.captured, nullptr);
  return kept(error);
}
int cudaGraphInstantiate(void** executable, void* graph, unsigned long long) {
  int error = with_context();
  if (!error) *executable = new Graph(*static_cast<Graph*>(graph));
  return kept(error);
}
int cudaGraphLaunch(void* executable, void*) {
  int error = with_context();
  if (!error) for (auto& work : *static_cast<Graph*>(executable)) work();
  return kept(error);
}
int cudaGraphDestroy(void* graph) { delete static_cast<Graph*>(graph); return kept(with_context()); }
int cudaGraphExecDestroy(void* executable) { return cudaGraphDestroy(executable); }

int cudaEventCreate(void** event) {
  int error = with_context();
  if (!error) *event = new Event{0};
  return kept(error);
}
int cudaEventDestroy(void* event) { delete static_cast<Event*>(event); return kept(with_context()); }
int cudaEventRecord(void* event, void*) {
  int error = with_context();
  if (!error) enqueue([=] { static_cast<Event*>(event)->secs = now(); });
  return kept(error);
}
int cudaEventSynchronize(void*) { return kept(with_context()); }
int cudaEventElapsedTime(float* millisecs, void* begin, void* end) {
  int error = with_context();
  if (!error) *millisecs = float(1e3 * (static_cast<Event*>(end)->secs - static_cast<Event*>(begin)->secs));
  return kept(error);
}

int cuModuleLoadData(void** module, const void* image) {
  int error = with_context();
  if (error) return error;
  auto header = static_cast<const Elf64_Ehdr*>(image);
  if (memcmp(header->e_ident, ELFMAG, SELFMAG)) return 200;
  if (header->e_machine != EM_X86_64 && header->e_machine != EM_AARCH64) return 209;
  size_t bytes = header->e_shoff + size_t(header->e_shentsize) * header->e_shnum;
  int file = memfd_create("kernel", MFD_CLOEXEC);
  bool whole = write(file, image, bytes) == ssize_t(bytes);
  void* library = whole ? dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!library) close(file);
  if (!library) return 200;
  *module = new Module{library, file, {}};  // the loader knows a library by its path, which has the file's number
  return 0;
}
int cuModuleUnload(void* module) {
  auto unloaded = static_cast<Module*>(module);
  dlclose(unloaded->library);
  close(unloaded->file);
  delete unloaded;
  return with_context();
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  int error = with_context();
  if (error) return error;
  auto& loaded = *static_cast<Module*>(module);
  auto symbol = [&](const char* prefix) { return dlsym(loaded.library, (std::string(prefix) + name).c_str()); };
  auto run = reinterpret_cast<int (*)(void**, const int*, int)>(symbol("run_"));
  auto count = reinterpret_cast<int (*)()>(symbol("parameters_"));
  if (!run || !count) return 500;
  auto& found = loaded.functions[name];
  found.run = run;
  found.parameters = count();
  *function = &found;
  return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  int error = with_context();
  if (error || attribute != 8) return error;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  if (value > most_dynamic_shared) return 1;
  static_cast<Function*>(function)->dynamic_shared = value;
  return 0;
}
int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** parameters, void**) {
  int error = with_context();
  if (error) return error;
  auto called = *static_cast<Function*>(function);
  auto [gx, gy, gz] = config->grid;
  auto [bx, by, bz] = config->block;
  if (!gx || !gy || !gz || !bx || !by || !bz || size_t(bx) * by * bz > most_threads) return 1;
  if (gy > 0xffff || gz > 0xffff || config->shared_bytes > unsigned(called.dynamic_shared)) return 1;
  std::vector<int> extents = {int(gx), int(gy), int(gz), int(bx), int(by), int(bz)};
  std::vector<uint64_t> values(called.parameters);  // which a graph keeps
  for (int at = 0; at < called.parameters; ++at) values[at] = *static_cast<uint64_t*>(parameters[at]);
  enqueue([called, extents, values]() mutable {
    std::vector<void*> addresses;
    for (auto& value : values) addresses.push_back(&value);
    run_kernel(called, addresses.data(), extents.data());
  });
  return 0;
}
int cuTensorMapEncodeTiled() { return 801; }
}
