// Memory that a thread keeps between calls, and the activations of one call.
#ifndef AUTOPLACE_BUFFERS_HPP_
#define AUTOPLACE_BUFFERS_HPP_

#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "path.hpp"

namespace autoplace {

// Grows, never shrinks; contents are lost when it grows. Aligned to 64 bytes.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  template <class T>
  T* get(int64_t count) {
    const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    if (bytes > size_) {
      std::free(data_);
      size_ = 0;
      data_ = std::aligned_alloc(64, bytes);
      if (data_ == nullptr) throw std::bad_alloc();
      size_ = bytes;
    }
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// T activations of K elements, as float32 and, where `quantized`, as int8.
class Activations {
 public:
  // Room for `t` tokens; `x` is their float32 data or null, where set_x or row_x provides it.
  void prepare(int64_t t, int64_t k, bool quantized);
  // Points at float32 rows, or widens bf16 ones; then quantises, with all threads where that pays.
  void load(const void* x, int x_dtype, int64_t t, int64_t k, bool quantized);

  float* own_rows() { return floats_.get<float>(t_ * k_); }
  void set_rows(const float* x);
  // Quantises elements [begin, begin + count) of a row; `begin` is a multiple of 32. The row's last call
  // also fills the padding.
  void quantize_range(int64_t row, int64_t begin, int64_t count);

  const Activation& operator[](int64_t row) const { return rows_[static_cast<size_t>(row)]; }
  const Activation* data() const { return rows_.data(); }
  int64_t count() const { return t_; }

 private:
  int64_t t_ = 0, k_ = 0;
  bool quantized_ = false;
  Buffer floats_, codes_, scales_, pairs_;
  std::vector<Activation> rows_;
};

// What a worker needs to multiply a tile.
struct TileScratch {
  Buffer tile, out, other;
};
TileScratch& tile_scratch();

}  // namespace autoplace

#endif  // AUTOPLACE_BUFFERS_HPP_
