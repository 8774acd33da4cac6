// Runs the blocks of a kernel: the threads of each in the given order. Where they wait for each other they are fibers,
// and run up to one barrier after the other.
#include <utility>
static constexpr int most_threads = 1024;
static constexpr size_t stack_bytes = 128 << 10;
Place threadIdx, blockIdx;
uint64_t exchanged[most_threads];
unsigned char buf_dyn_shmem_ptr[DYNAMIC_BYTES];
enum State { RUNS, WAITS_FOR_WARP, WAITS_FOR_BLOCK, ENDED };
struct Launch {
  void (*kernel)(void** parameters);
  void** parameters;
  Place grid, block;
  bool backwards;
  int threads() const { return block.x * block.y * block.z; }
};
static State states[most_threads];
static ucontext_t contexts[most_threads], scheduler;
static int current;
static Launch launched;

int lane_of_block() { return current; }
static void yield(State state) {
  states[current] = state;
  swapcontext(&contexts[current], &scheduler);
}
void wait_for_block() { yield(WAITS_FOR_BLOCK); }
void wait_for_warp() { yield(WAITS_FOR_WARP); }
static void fiber() {
  launched.kernel(launched.parameters);
  states[current] = ENDED;
  swapcontext(&contexts[current], &scheduler);
}
static Place place(int at, Place extent) {
  return {at % extent.x, at / extent.x % extent.y, at / (extent.x * extent.y)};
}
static bool all_wait(int begin, int end, State state) {
  bool waits = false;
  for (int at = begin; at < end; ++at) {
    if (states[at] != state && states[at] != ENDED) return false;
    waits |= states[at] == state;
  }
  return waits;
}
static void release(int begin, int end, State state) {
  for (int at = begin; at < end; ++at) if (states[at] == state) states[at] = RUNS;
}
// Returns 0; 1 where threads wait for each other at different barriers.
static int run_fibers(unsigned char* stacks) {
  int threads = launched.threads();
  for (int at = 0; at < threads; ++at) {
    states[at] = RUNS;
    getcontext(&contexts[at]);
    contexts[at].uc_stack.ss_sp = stacks + at * stack_bytes;
    contexts[at].uc_stack.ss_size = stack_bytes;
    contexts[at].uc_link = nullptr;
    makecontext(&contexts[at], fiber, 0);
  }
  for (;;) {
    bool ran = false;
    for (int step = 0; step < threads; ++step) {
      current = launched.backwards ? threads - 1 - step : step;
      if (states[current] != RUNS) continue;
      ran = true;
      threadIdx = place(current, launched.block);
      swapcontext(&scheduler, &contexts[current]);
    }
    for (int warp = 0; warp < threads; warp += 32) {
      int end = std::min(threads, warp + 32);
      if (all_wait(warp, end, WAITS_FOR_WARP)) release(warp, end, WAITS_FOR_WARP);
    }
    if (all_wait(0, threads, WAITS_FOR_BLOCK)) release(0, threads, WAITS_FOR_BLOCK);
    if (all_wait(0, threads, ENDED)) return 0;
    if (!ran) return 1;
  }
}
static void run_threads() {
  int threads = launched.threads();
  for (int step = 0; step < threads; ++step) {
    threadIdx = place(launched.backwards ? threads - 1 - step : step, launched.block);
    launched.kernel(launched.parameters);
  }
}
// extents: of the grid in x, y, z, then of a block.
static int run_grid(void (*kernel)(void**), void** parameters, const int* extents, int backwards) {
  Place grid = {extents[0], extents[1], extents[2]}, block = {extents[3], extents[4], extents[5]};
  launched = {kernel, parameters, grid, block, backwards != 0};
  std::unique_ptr<unsigned char[]> stacks;  // pages are made when touched
  if (HAS_BARRIERS) stacks.reset(new unsigned char[launched.threads() * stack_bytes]);
  int blocks = launched.grid.x * launched.grid.y * launched.grid.z;
  for (int step = 0; step < blocks; ++step) {
    blockIdx = place(backwards ? blocks - 1 - step : step, launched.grid);
    memset(buf_dyn_shmem_ptr, 0xFF, sizeof buf_dyn_shmem_ptr);  // NaN, where something reads what nobody wrote
    if (!HAS_BARRIERS) run_threads();
    else if (run_fibers(stacks.get())) return 1;
  }
  return 0;
}
template <typename... P, size_t... I>
static void called(void (*kernel)(P...), void** parameters, std::index_sequence<I...>) {
  kernel(*(std::remove_cv_t<P>*)parameters[I]...);
}
template <typename... P>
static void called(void (*kernel)(P...), void** parameters) {
  called(kernel, parameters, std::index_sequence_for<P...>());
}
template <typename... P> static constexpr int number_of(void (*)(P...)) { return sizeof...(P); }
// Each kernel as a function over the addresses of its arguments, and their number.
#define ENTRY(NAME) \
  extern "C" int run_##NAME(void** parameters, const int* extents, int backwards) { \
    return run_grid([](void** each) { called(NAME, each); }, parameters, extents, backwards); \
  } \
  extern "C" int parameters_##NAME() { return number_of(NAME); }
