// CUDA's bfloat16: the upper half of a float, to which results are rounded, ties to even.
#pragma once
#include <cstring>
#include "cuda.h"
struct __nv_bfloat16 {
  unsigned short bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float value) {
    unsigned int all;
    std::memcpy(&all, &value, 4);
    bool is_nan = (all & 0x7fffffff) > 0x7f800000;
    bits = is_nan ? (all >> 16) | 64 : (all + 0x7fff + ((all >> 16) & 1)) >> 16;
  }
  operator float() const {
    unsigned int all = (unsigned int)bits << 16;
    float value;
    std::memcpy(&value, &all, 4);
    return value;
  }
};
typedef __nv_bfloat16 nv_bfloat16;
struct alignas(4) nv_bfloat162 {
  nv_bfloat16 x, y;
  nv_bfloat162() = default;
  nv_bfloat162(nv_bfloat16 first, nv_bfloat16 second) : x(first), y(second) {}
};
typedef nv_bfloat162 __nv_bfloat162;
inline bool __hgt(nv_bfloat16 a, nv_bfloat16 b) { return (float)a > (float)b; }
inline bool __hlt(nv_bfloat16 a, nv_bfloat16 b) { return (float)a < (float)b; }
inline float __bfloat162float(nv_bfloat16 x) { return (float)x; }
inline nv_bfloat16 __float2bfloat16(float x) { return nv_bfloat16(x); }
inline nv_bfloat16 __float2bfloat16_rn(float x) { return nv_bfloat16(x); }
