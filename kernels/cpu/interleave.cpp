#include "interleave.hpp"

#include <cstring>

#include "thread_pool.hpp"

namespace autoplace {
namespace {

uint32_t swap_bits(uint32_t x, uint32_t mask, int distance) {
  const uint32_t t = (x ^ (x >> distance)) & mask;
  return x ^ t ^ (t << distance);
}

// The bits with even numbers to the low half, those with odd ones to the high half; and back.
uint32_t unshuffle(uint32_t x) {
  x = swap_bits(x, 0x22222222u, 1);
  x = swap_bits(x, 0x0c0c0c0cu, 2);
  x = swap_bits(x, 0x00f000f0u, 4);
  return swap_bits(x, 0x0000ff00u, 8);
}
uint32_t shuffle(uint32_t x) {
  x = swap_bits(x, 0x0000ff00u, 8);
  x = swap_bits(x, 0x00f000f0u, 4);
  x = swap_bits(x, 0x0c0c0c0cu, 2);
  return swap_bits(x, 0x22222222u, 1);
}

// Q5_0, Q5_1: bit 4·s + i, the fifth of weight 4·s + i, becomes bit s of byte i.
uint32_t fifth_bits_in(uint32_t x) { return unshuffle(unshuffle(x)); }
uint32_t fifth_bits_out(uint32_t x) { return shuffle(shuffle(x)); }

// Q5_K: of the weights l = 4·s + i of group g, bit g of byte l becomes bit 2·(s % 4) + g % 2 of byte i of
// word 2·(g / 2) + s / 4, so that one word serves four steps of two groups.
void k_fifth_bits_in(const uint32_t* from, uint32_t* to) {
  std::memset(to, 0, 32);
  for (int s = 0; s < 8; ++s) {
    for (int pair = 0; pair < 4; ++pair) {
      to[2 * pair + s / 4] |= ((from[s] >> (2 * pair)) & 0x03030303u) << (2 * (s % 4));
    }
  }
}
void k_fifth_bits_out(const uint32_t* from, uint32_t* to) {
  std::memset(to, 0, 32);
  for (int s = 0; s < 8; ++s) {
    for (int pair = 0; pair < 4; ++pair) {
      to[s] |= ((from[2 * pair + s / 4] >> (2 * (s % 4))) & 0x03030303u) << (2 * pair);
    }
  }
}

constexpr int kMostWords = 52;
constexpr int kFifthWords = 3;  // where Q5_K's lie among its words

void change_words(int format, uint32_t* words, bool in) {
  if (format == kQ8_0) {
    for (int i = 0; i < 8; ++i) words[i] ^= 0x80808080u;
  } else if (format == kQ5_0 || format == kQ5_1) {
    words[0] = in ? fifth_bits_in(words[0]) : fifth_bits_out(words[0]);
  } else if (format == kQ5_K) {
    uint32_t old[8];
    std::memcpy(old, words + kFifthWords, 32);
    (in ? k_fifth_bits_in : k_fifth_bits_out)(old, words + kFifthWords);
  }
}

// Moves one block into, or out of, its lane of a unit.
template <bool kIn>
void move_block(int format, const BlockPieces& pieces, uint8_t* block, uint8_t* unit, int64_t lane) {
  const auto copy = [](uint8_t* inside, uint8_t* outside, size_t size) {
    std::memcpy(kIn ? inside : outside, kIn ? outside : inside, size);
  };
  if (pieces.num_bytes != 0) copy(unit + lane, block, 1);
  unit += pieces.num_bytes * kTileRows;
  for (int i = 0; i < pieces.num_halves; ++i) {
    copy(unit + lane * 2, block + pieces.halves[i], 2);
    unit += kTileRows * 2;
  }
  uint32_t words[kMostWords];
  const size_t size = static_cast<size_t>(pieces.num_words) * 4;
  if (kIn) {
    std::memcpy(words, block + pieces.first_word, size);
    change_words(format, words, true);
  }
  for (int i = 0; i < pieces.num_words; ++i) {
    uint8_t* word = reinterpret_cast<uint8_t*>(words + i);
    copy(unit + (i * kTileRows + lane) * 4, word, 4);
  }
  if (!kIn) {
    change_words(format, words, false);
    std::memcpy(block + pieces.first_word, words, size);
  }
}

}  // namespace

bool can_interleave(int format, int64_t n, int64_t k) {
  const BlockSize size = block_size(format);
  return block_pieces(format).num_words != 0 && n % kTileRows == 0 && k % size.weights == 0;
}

void interleave(const uint8_t* src, int format, int64_t n, int64_t k, uint8_t* dst) {
  const BlockSize size = block_size(format);
  const BlockPieces pieces = block_pieces(format);
  const int64_t num_blocks = k / size.weights, row_bytes = num_blocks * size.bytes;
  parallel_for(n / kTileRows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t strip = begin; strip < end; ++strip) {
      const uint8_t* rows = src + strip * kTileRows * row_bytes;
      uint8_t* unit = dst + strip * kTileRows * row_bytes;
      for (int64_t b = 0; b < num_blocks; ++b, unit += kTileRows * size.bytes) {
        for (int64_t lane = 0; lane < kTileRows; ++lane) {
          uint8_t* block = const_cast<uint8_t*>(rows + lane * row_bytes + b * size.bytes);
          move_block<true>(format, pieces, block, unit, lane);
        }
      }
    }
  });
}

void restore_block(const Matrix& w, int64_t row, int64_t index, uint8_t* block) {
  const int format = base_format(w.format);
  const int64_t unit_bytes = block_size(format).bytes * kTileRows;
  const int64_t num_blocks = w.k / block_size(format).weights;
  const uint8_t* unit = w.data + (row / kTileRows * num_blocks + index) * unit_bytes;
  move_block<false>(format, block_pieces(format), block, const_cast<uint8_t*>(unit), row % kTileRows);
}

void deinterleave(const Matrix& w, uint8_t* dst) {
  const BlockSize size = block_size(base_format(w.format));
  const int64_t num_blocks = w.k / size.weights;
  parallel_for(w.n, kTileRows, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * num_blocks; i < end * num_blocks; ++i) {
      restore_block(w, i / num_blocks, i % num_blocks, dst + i * size.bytes);
    }
  });
}

}  // namespace autoplace
