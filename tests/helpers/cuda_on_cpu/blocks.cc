// Runs the blocks of a kernel: the fibers of each in the given order, up to one barrier after the other.
static constexpr int threads = THREADS_X * THREADS_Y * THREADS_Z;
static constexpr size_t stack_bytes = 128 << 10;
Place threadIdx, blockIdx;
uint64_t exchanged[(threads + 31) / 32 * 32];
unsigned char buf_dyn_shmem_ptr[DYNAMIC_BYTES];
enum State { RUNS, WAITS_FOR_WARP, WAITS_FOR_BLOCK, ENDED };
static State states[threads];
static ucontext_t contexts[threads], scheduler;
static int current;
static void** arrays_of_all;

int lane_of_block() { return current; }
static void yield(State state) {
  states[current] = state;
  swapcontext(&contexts[current], &scheduler);
}
void wait_for_block() { yield(WAITS_FOR_BLOCK); }
void wait_for_warp() { yield(WAITS_FOR_WARP); }
static void fiber() {
  void** arrays = arrays_of_all;
  KERNEL(ARGUMENTS);
  states[current] = ENDED;
  swapcontext(&contexts[current], &scheduler);
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
static int run_block(unsigned char* stacks, bool backwards) {
  memset(buf_dyn_shmem_ptr, 0xFF, sizeof buf_dyn_shmem_ptr);  // NaN, where something reads what nobody wrote
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
      current = backwards ? threads - 1 - step : step;
      if (states[current] != RUNS) continue;
      ran = true;
      threadIdx = {current % THREADS_X, current / THREADS_X % THREADS_Y, current / (THREADS_X * THREADS_Y)};
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
extern "C" int run(void** arrays, int backwards) {
  std::unique_ptr<unsigned char[]> stacks(new unsigned char[threads * stack_bytes]);  // pages are made when touched
  arrays_of_all = arrays;
  constexpr int blocks = BLOCKS_X * BLOCKS_Y * BLOCKS_Z;
  for (int step = 0; step < blocks; ++step) {
    int at = backwards ? blocks - 1 - step : step;
    blockIdx = {at % BLOCKS_X, at / BLOCKS_X % BLOCKS_Y, at / (BLOCKS_X * BLOCKS_Y)};
    if (run_block(stacks.get(), backwards)) return 1;
  }
  return 0;
}
