// CUDA's float16 as the compiler's own: each operation is rounded, as on a GPU.
#pragma once
#include "cuda.h"
typedef _Float16 half;
typedef _Float16 __half;
struct alignas(4) half2 { half x, y; };
typedef half2 __half2;
inline half2 make_half2(half x, half y) { return {x, y}; }
inline bool __hgt(half a, half b) { return a > b; }
inline bool __hlt(half a, half b) { return a < b; }
inline float __half2float(half x) { return (float)x; }
inline half __float2half(float x) { return (half)x; }
inline half __float2half_rn(float x) { return (half)x; }
inline half hexp(half x) { return (half)expf((float)x); }
inline half htanh(half x) { return (half)tanhf((float)x); }
inline half hsqrt(half x) { return (half)sqrtf((float)x); }
inline half hrsqrt(half x) { return (half)(1.0f / sqrtf((float)x)); }
