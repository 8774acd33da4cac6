// A GPU of software: its state, what a process has of it, and how its kernels run.
#pragma once
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <utility>
#include <vector>

// The GPU's state, in a file that its owner writes to (__init__.py has the same fields).
struct Gpu {
  int64_t lost_by;            // error of every call while it is not 0
  int64_t fault;              // error of the context after one more launch, and
  int64_t launches_to_fault;  // launches before that one
  int64_t memory_bytes;
  int64_t multiprocessors;
  int64_t watchdog_millisecs;  // of a launch; 0 for none
  int64_t contexts;            // made so far
  int64_t launches;            // done so far
};
static Gpu* gpu;

struct Error { int number; const char *driver, *runtime, *text; };
// Texts of cudaGetErrorString, CUDA 13.0.
static const Error errors[] = {
  {0, "CUDA_SUCCESS", "cudaSuccess", "no error"},
  {1, "CUDA_ERROR_INVALID_VALUE", "cudaErrorInvalidValue", "invalid argument"},
  {2, "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "out of memory"},
  {3, "CUDA_ERROR_NOT_INITIALIZED", "cudaErrorInitializationError", "initialization error"},
  {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "cudaErrorDevicesUnavailable",
   "CUDA-capable device(s) is/are busy or unavailable"},
  {100, "CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice", "no CUDA-capable device is detected"},
  {200, "CUDA_ERROR_INVALID_IMAGE", "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
  {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "cudaErrorNoKernelImageForDevice",
   "no kernel image is available for execution on the device"},
  {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
  {226, "CUDA_ERROR_CONTAINED", "cudaErrorContained",
   "Invalid access of peer GPU memory over nvlink or a hardware error"},
  {500, "CUDA_ERROR_NOT_FOUND", "cudaErrorSymbolNotFound", "named symbol not found"},
  {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
  {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
  {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "cudaErrorMisalignedAddress", "misaligned address"},
  {719, "CUDA_ERROR_LAUNCH_FAILED", "cudaErrorLaunchFailure", "unspecified launch failure"},
  {801, "CUDA_ERROR_NOT_SUPPORTED", "cudaErrorNotSupported", "operation not supported"},
  {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "cudaErrorStreamCaptureUnsupported",
   "operation not permitted when stream is capturing"},
  {999, "CUDA_ERROR_UNKNOWN", "cudaErrorUnknown", "unknown error"},
};
static const Error& error_of(int number) {
  for (const Error& each : errors) if (each.number == number) return each;
  return errors[sizeof errors / sizeof *errors - 1];
}

static constexpr size_t arena_bytes = size_t(1) << 40, granule = size_t(2) << 20, page = 4096;
static constexpr size_t garbage_bytes = size_t(64) << 20;  // of fresh memory, at most
static constexpr int most_threads = 1024, most_shared = 48 << 10, most_dynamic_shared = 99 << 10;

// Of a process. A child of it has none and can make none, as with CUDA.
struct Context {
  pid_t pid = 0;
  int lost_by = 0;  // error of every call from now on
  char* arena = nullptr;
  size_t end = granule, used = 0;
  std::map<char*, size_t> blocks;
  std::vector<std::function<void()>>* captured = nullptr;
};
static Context context;
static int last_error;

struct Function { int (*run)(void**, const int*, int); int parameters; int dynamic_shared = most_shared; };

static bool has_gpu() {
  if (gpu) return true;
  const char* name = getenv("EMULATED_GPU");
  int file = name ? open(name, O_RDWR) : -1;
  if (file < 0) return false;
  void* at = mmap(nullptr, sizeof(Gpu), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at != MAP_FAILED) gpu = static_cast<Gpu*>(at);
  return gpu;
}
// Returns the error that every call begins with.
static int initialized() {
  if (!has_gpu()) return 100;
  if (context.pid && context.pid != getpid()) return 3;
  context.pid = getpid();
  if (gpu->lost_by && !context.lost_by) {
    if (!context.arena) return gpu->lost_by;  // without a context there is nothing to stay
    context.lost_by = gpu->lost_by;
  }
  return context.lost_by;
}
static int with_context() {
  int error = initialized();
  if (error || context.arena) return error;
  // Shared: the limits of a process are on memory of its own, and a GPU's is not.
  void* arena = mmap(nullptr, arena_bytes, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) return 2;
  context.arena = static_cast<char*>(arena);
  __atomic_add_fetch(&gpu->contexts, 1, __ATOMIC_RELAXED);
  return 0;
}
static int kept(int error) {
  if (error) last_error = error;
  return error;
}
static bool holds(const void* at, size_t bytes) {
  char* begin = static_cast<char*>(const_cast<void*>(at));
  auto next = context.blocks.upper_bound(begin);
  if (next == context.blocks.begin()) return false;
  auto block = std::prev(next);
  return begin + bytes <= block->first + block->second;
}
static double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

// A kernel that accesses memory that is not there, or runs for too long, ends by a signal to its thread.
static constexpr int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
static sigjmp_buf before_kernel;
static volatile int ended_by;
static volatile bool running;
static void end_kernel(int signal) {
  if (!running) return;  // of a timer that was about to be deleted
  running = false;
  ended_by = signal == SIGSEGV ? 700 : signal == SIGBUS ? 716 : signal == SIGILL || signal == SIGFPE ? 719 : 702;
  siglongjmp(before_kernel, 1);
}
struct Guard {
  struct sigaction before[4];
  timer_t timer{};
  bool watched = gpu->watchdog_millisecs > 0;
  Guard() {
    struct sigaction ours = {};
    ours.sa_handler = end_kernel;
    for (int at = 0; at < 4; ++at) sigaction(fatal[at], &ours, &before[at]);
    if (!watched) return;
    int signal = SIGRTMIN + 3;
    sigaction(signal, &ours, nullptr);
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = signal;
    event._sigev_un._tid = gettid();
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    itimerspec when = {};
    when.it_value = {gpu->watchdog_millisecs / 1000, gpu->watchdog_millisecs % 1000 * 1000000};
    timer_settime(timer, 0, &when, nullptr);
  }
  ~Guard() {
    if (watched) timer_delete(timer);
    for (int at = 0; at < 4; ++at) sigaction(fatal[at], &before[at], nullptr);
  }
};
static void run_kernel(const Function& function, void** parameters, const int* extents) {
  if (context.lost_by) return;
  __atomic_add_fetch(&gpu->launches, 1, __ATOMIC_RELAXED);
  if (gpu->fault && __atomic_fetch_sub(&gpu->launches_to_fault, 1, __ATOMIC_RELAXED) <= 0) {
    context.lost_by = std::exchange(gpu->fault, 0);
    return;
  }
  Guard guard;
  if (sigsetjmp(before_kernel, 1)) {
    context.lost_by = ended_by;
    return;
  }
  running = true;
  if (function.run(parameters, extents, 0)) context.lost_by = 719;
  running = false;
}
