// One pool of threads for all kernels: made once, spins briefly, then sleeps.
#ifndef AUTOPLACE_THREAD_POOL_HPP_
#define AUTOPLACE_THREAD_POOL_HPP_

#include <cstdint>

namespace autoplace {

int num_threads();
// At least 1; takes effect with the next parallel_for.
void set_num_threads(int count, bool pin);

using RangeFunction = void (*)(void* context, int64_t begin, int64_t end);
void parallel_ranges(int64_t count, int64_t chunk, RangeFunction function, void* context);

// Calls body(begin, end) on ranges of at most `chunk` that cover [0, count), from all threads; returns
// when all are done. Calls from several threads run one after the other. Not to be nested.
template <class Body>
void parallel_for(int64_t count, int64_t chunk, const Body& body) {
  const auto call = [](void* context, int64_t begin, int64_t end) {
    (*static_cast<const Body*>(context))(begin, end);
  };
  parallel_ranges(count, chunk, call, const_cast<Body*>(&body));
}

}  // namespace autoplace

#endif  // AUTOPLACE_THREAD_POOL_HPP_
