#include "thread_pool.hpp"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace autoplace {
namespace {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins for about `kSpin` before it gives the core away: long enough to bridge the gap between two
// kernels of a layer, short enough to leave the core to torch's threads.
constexpr auto kSpin = std::chrono::microseconds(30);

template <class Condition>
bool spin_until(Condition&& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return condition();
}

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
#endif
  return cpus;
}

class ThreadPool {
 public:
  ThreadPool(int count, bool pin) {
    const std::vector<int> cpus = allowed_cpus();
    for (int index = 1; index < count; ++index) {
      workers_.emplace_back([this] { work(); });
      if (pin && !cpus.empty()) bind(workers_.back(), cpus[index % cpus.size()]);
    }
  }

  ~ThreadPool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      generation_.fetch_add(1);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  // After a fork the workers do not exist: forget them without joining.
  void abandon() {
    for (std::thread& worker : workers_) worker.detach();
  }

  int count() const { return static_cast<int>(workers_.size()) + 1; }

  void run(int64_t count, int64_t chunk, RangeFunction function, void* context) {
    function_ = function;
    context_ = context;
    count_ = count;
    chunk_ = chunk;
    next_.store(0, std::memory_order_relaxed);
    running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    generation_.fetch_add(1);
    if (sleeping_.load() > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    take_ranges();
    auto done = [this] { return running_.load(std::memory_order_acquire) == 0; };
    while (!spin_until(done)) sched_yield();
  }

 private:
  static void bind(std::thread& thread, int cpu) {
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
#else
    (void)thread, (void)cpu;
#endif
  }

  void take_ranges() {
    for (;;) {
      const int64_t begin = next_.fetch_add(chunk_, std::memory_order_relaxed);
      if (begin >= count_) return;
      function_(context_, begin, begin + chunk_ < count_ ? begin + chunk_ : count_);
    }
  }

  void work() {
    uint64_t seen = 0;
    for (;;) {
      wait_for_job(seen);
      ++seen;  // run() waits for every worker, so none can miss a generation
      if (stopping_) return;
      take_ranges();
      running_.fetch_sub(1, std::memory_order_release);
    }
  }

  void wait_for_job(uint64_t seen) {
    auto changed = [&] { return generation_.load() != seen; };
    if (spin_until(changed)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    sleeping_.fetch_add(1);
    wake_.wait(lock, changed);
    sleeping_.fetch_sub(1);
  }

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> sleeping_{0};
  alignas(64) std::atomic<uint64_t> generation_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int> running_{0};
  RangeFunction function_ = nullptr;
  void* context_ = nullptr;
  int64_t count_ = 0;
  int64_t chunk_ = 1;
};

// The pool and its settings. Leaked on purpose: workers must not outlive a destroyed static.
struct Shared {
  std::mutex mutex;
  std::unique_ptr<ThreadPool> pool;
  int wanted = 0;
  bool pin = false;
};

Shared* g_shared = nullptr;
std::once_flag g_once;

void forget_in_child() {
  Shared* old = g_shared;
  g_shared = new Shared;
  g_shared->wanted = old->wanted;
  g_shared->pin = old->pin;
  if (old->pool) old->pool->abandon();  // and leak: its mutex may be held by a thread that is gone
}

Shared& shared() {
  std::call_once(g_once, [] {
    g_shared = new Shared;
    const std::vector<int> cpus = allowed_cpus();
    g_shared->wanted = cpus.empty() ? static_cast<int>(std::thread::hardware_concurrency())
                                    : static_cast<int>(cpus.size());
    if (g_shared->wanted < 1) g_shared->wanted = 1;
    pthread_atfork(nullptr, nullptr, forget_in_child);
  });
  return *g_shared;
}

}  // namespace

int num_threads() {
  Shared& state = shared();
  std::lock_guard<std::mutex> lock(state.mutex);
  return state.wanted;
}

void set_num_threads(int count, bool pin) {
  Shared& state = shared();
  std::lock_guard<std::mutex> lock(state.mutex);
  if (state.wanted == count && state.pin == pin) return;
  state.wanted = count;
  state.pin = pin;
  state.pool.reset();
}

void parallel_ranges(int64_t count, int64_t chunk, RangeFunction function, void* context) {
  if (count <= 0) return;
  Shared& state = shared();
  std::lock_guard<std::mutex> lock(state.mutex);
  if (state.wanted == 1 || count <= chunk) {
    for (int64_t begin = 0; begin < count; begin += chunk) {
      function(context, begin, begin + chunk < count ? begin + chunk : count);
    }
    return;
  }
  if (!state.pool) state.pool = std::make_unique<ThreadPool>(state.wanted, state.pin);
  state.pool->run(count, chunk, function, context);
}

}  // namespace autoplace
