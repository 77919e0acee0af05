// Seconds by role, counted by the thread that calls the kernels; nothing is read while switched off.
#ifndef AUTOPLACE_ROLE_TIMES_HPP_
#define AUTOPLACE_ROLE_TIMES_HPP_

#include <chrono>

#include "autoplace/decode.h"

namespace autoplace {

struct RoleTimes {
  bool on = false;
  double seconds[kApRoles] = {};
};

inline RoleTimes& role_times() {
  static thread_local RoleTimes times;
  return times;
}

// Adds the time from here to the end of the scope to a role.
class Timed {
 public:
  explicit Timed(int role) : role_(role_times().on ? role : -1) {
    if (role_ >= 0) begin_ = Clock::now();
  }
  ~Timed() {
    if (role_ >= 0) role_times().seconds[role_] += std::chrono::duration<double>(Clock::now() - begin_).count();
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  int role_;
  Clock::time_point begin_;
};

}  // namespace autoplace

#endif  // AUTOPLACE_ROLE_TIMES_HPP_
