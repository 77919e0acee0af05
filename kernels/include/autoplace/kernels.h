// The C ABI of autoplace's CPU kernels: plain pointers and sizes, no torch, no exceptions.
//
// y[T, N] = x[T, K] · W[N, K]^T.  T tokens, K in features, N out features, E experts, A experts a
// token, H model width, I intermediate width.
#ifndef AUTOPLACE_KERNELS_H_
#define AUTOPLACE_KERNELS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// Weight formats are GGML type codes, and these two of our own (see cpu/marlin_format.hpp).
enum { kApMarlin4 = 1004, kApMarlin8 = 1008 };
// Added to a GGML type: its rows are interleaved by `ap_interleave`.
enum { kApInterleaved = 2000 };
// Element types of activations.
enum { kApF32 = 0, kApBF16 = 30 };
// What a call returns.
enum { kApOk = 0, kApBadType = 1, kApBadShape = 2, kApBadExpert = 3, kApNoMemory = 4 };

// Name of the path in use ("scalar", "avx2", "avx512"); `ap_set_path` returns 0 where the CPU has it.
const char* ap_path(void);
int ap_set_path(const char* name);
int ap_path_supported(const char* name);

// Threads in all, the caller's among them. With `pin`, the workers are bound to one CPU each.
int ap_set_num_threads(int num_threads, int pin);
int ap_num_threads(void);

// Bytes of an [N, K] matrix in a format; -1 where the format cannot hold that shape.
int64_t ap_matrix_bytes(int format, int64_t n, int64_t k);

// Whether interleaving [N, K] pays: the format has blocks, N is a multiple of 16, and the path in use
// multiplies interleaved rows faster.
int ap_interleave_pays(int format, int64_t n, int64_t k);
// Rearranges [N, K]; `dst` has the same size. `ap_deinterleave` undoes it.
int ap_interleave(const void* src, int format, int64_t n, int64_t k, void* dst);
int ap_deinterleave(const void* src, int format, int64_t n, int64_t k, void* dst);

int ap_dequantize(const void* src, int format, int64_t num_elements, void* dst, int dst_dtype);

int ap_linear(const void* x, int x_dtype, int64_t num_tokens, int64_t k, const void* weights,
              int format, int64_t n, void* y, int y_dtype);

// Packs rows [first_row, first_row + num_rows) of a float32 [N, K] matrix; `first_row` is a multiple
// of 16, and so is num_rows unless they are the last. Padding is written with the last rows.
int ap_marlin_pack(const float* rows, int64_t first_row, int64_t num_rows, int64_t n, int64_t k,
                   int format, void* packed);

// out[T, H] = sum over a of weights[T, a] · down[e](silu(gate[e](x)) * up[e](x)), e = ids[T, a].
// Each of gate, up [E, I, H] and down [E, H, I] is one block of memory, expert after expert.
// `rejected_id` receives the id where kApBadExpert is returned.
int ap_experts(const void* x, int x_dtype, int64_t num_tokens, int64_t hidden, const int64_t* ids,
               const float* weights, int64_t experts_per_token, int64_t num_experts,
               int64_t intermediate, const void* gate, int gate_format, const void* up,
               int up_format, const void* down, int down_format, void* out, int out_dtype,
               int64_t* rejected_id);

// Reads `num_bytes` with all threads and returns a checksum: the machine's read bandwidth.
uint64_t ap_read(const void* data, int64_t num_bytes);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif  // AUTOPLACE_KERNELS_H_
