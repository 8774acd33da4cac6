// Tensor cores by their definition. The first lane of a warp holds the whole fragments and computes the whole products.
#pragma once
#include "cuda_fp16.h"
namespace nvcuda { namespace wmma {
struct matrix_a; struct matrix_b; struct accumulator; struct row_major; struct col_major;
enum layout_t { mem_row_major, mem_col_major };
template <typename Use, int M, int N, int K, typename T, typename Layout = void> struct fragment {
  static constexpr int rows = std::is_same<Use, matrix_b>::value ? K : M;
  static constexpr int columns = std::is_same<Use, matrix_a>::value ? K : N;
  T x[rows * columns];
};
template <typename F, typename T> void fill_fragment(F& to, T value) {
  if (lane_of_block() % 32) return;
  for (auto& each : to.x) each = value;
}
template <typename Use, int M, int N, int K, typename T, typename Layout, typename P>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& to, const P* from, unsigned stride) {
  typedef fragment<Use, M, N, K, T, Layout> F;
  wait_for_warp();  // what the other lanes have written before
  if (lane_of_block() % 32) return;
  for (int i = 0; i < F::rows; ++i) for (int j = 0; j < F::columns; ++j)
    to.x[i * F::columns + j] = std::is_same<Layout, col_major>::value ? from[j * stride + i] : from[i * stride + j];
}
template <typename A, typename B, typename C, typename D> void mma_sync(D& to, const A& a, const B& b, const C& c) {
  if (lane_of_block() % 32) return;
  D sums;
  typedef typename std::conditional<std::is_integral<typename std::remove_reference<decltype(c.x[0])>::type>::value,
                                    int, float>::type Sum;
  for (int i = 0; i < A::rows; ++i) for (int j = 0; j < B::columns; ++j) {
    Sum sum = (Sum)c.x[i * B::columns + j];
    for (int k = 0; k < A::columns; ++k) sum += (Sum)a.x[i * A::columns + k] * (Sum)b.x[k * B::columns + j];
    sums.x[i * B::columns + j] = sum;
  }
  to = sums;
}
template <typename P, typename F> void store_matrix_sync(P* to, const F& from, unsigned stride, layout_t layout) {
  if (lane_of_block() % 32 == 0)
    for (int i = 0; i < F::rows; ++i) for (int j = 0; j < F::columns; ++j)
      to[layout == mem_row_major ? i * stride + j : j * stride + i] = from.x[i * F::columns + j];
  wait_for_warp();
}
} }
