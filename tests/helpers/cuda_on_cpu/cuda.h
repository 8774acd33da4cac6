// What TVM's CUDA source needs of CUDA, for a C++ compiler. Each thread of a block is a fiber: they run one after the
// other, each up to its next barrier, so that what a missing barrier breaks depends on their order alone.
#pragma once
#include <math.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

using std::max; using std::min;
typedef unsigned char uchar;
typedef unsigned short ushort;

struct Place { int x = 0, y = 0, z = 0; };
extern Place threadIdx, blockIdx;

// Returns when all fibers of the block, or all of the warp, have come here.
void wait_for_block();
void wait_for_warp();
// Place for the numbers that the lanes of a warp exchange, 32 for each warp.
extern uint64_t exchanged[];
int lane_of_block();

inline void __syncthreads() { wait_for_block(); }
inline void __syncwarp(unsigned = 0) { wait_for_warp(); }
inline unsigned __activemask() { return ~0u; }

template <typename T> T from_lane(T value, int lane) {
  uint64_t* slots = exchanged + lane_of_block() / 32 * 32;
  uint64_t raw = 0;
  memcpy(&raw, &value, sizeof(T));
  slots[lane_of_block() % 32] = raw;
  wait_for_warp();
  T other;
  memcpy(&other, &slots[lane], sizeof(T));
  wait_for_warp();
  return other;
}
template <typename T> T __shfl_sync(unsigned, T value, int lane, int = 32) { return from_lane(value, lane & 31); }
template <typename T> T __shfl_down_sync(unsigned, T value, int by, int = 32) {
  int lane = lane_of_block() % 32;
  return from_lane(value, lane + by < 32 ? lane + by : lane);
}
template <typename T> T __shfl_up_sync(unsigned, T value, int by, int = 32) {
  int lane = lane_of_block() % 32;
  return from_lane(value, lane >= by ? lane - by : lane);
}
template <typename T> T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
  return from_lane(value, (lane_of_block() % 32) ^ mask);
}

inline int __dp4a(int a, int b, int c) {
  for (int at = 0; at < 32; at += 8) c += (signed char)(a >> at) * (signed char)(b >> at);
  return c;
}
template <typename T> T __ldg(const T* at) { return *at; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }

#define VECTORS(T, N) \
  struct N##1 { T x; }; struct alignas(2 * sizeof(T)) N##2 { T x, y; }; struct N##3 { T x, y, z; }; \
  struct alignas(4 * sizeof(T)) N##4 { T x, y, z, w; }; \
  inline N##1 make_##N##1(T x) { return {x}; } \
  inline N##2 make_##N##2(T x, T y) { return {x, y}; } \
  inline N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; } \
  inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTORS(int, int) VECTORS(unsigned, uint) VECTORS(float, float) VECTORS(double, double) VECTORS(unsigned char, uchar)
VECTORS(short, short) VECTORS(unsigned short, ushort) VECTORS(signed char, char) VECTORS(long long, longlong)
VECTORS(unsigned long long, ulonglong)
