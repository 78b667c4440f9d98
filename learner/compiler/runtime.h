// What compiled steps are made with besides products: functions of one element, and threads.

#pragma once

#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <vector>

namespace repertory {

// What is not a number stays so: learners look for it.
inline float at_least(float x, float low) { return x < low ? low : x; }
inline float at_most(float x, float high) { return x > high ? high : x; }
inline float least(float x, float y) { return y < x || y != y ? y : x; }
inline float greatest(float x, float y) { return y > x || y != y ? y : x; }
inline float square(float x) { return x * x; }
inline float sign_of(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x; }

// exp(x) = 2^n exp(r) with |r| <= ln(2) / 2, the latter by its Taylor series: 2 units of the last place.
// Without branches, so that loops of it become vector instructions. 2^n alone may be larger than any
// float where exp(x) is not, so n is added to the exponent that is there.
inline float exp_of(float x) {
  constexpr float LOWEST = -87.3f, HIGHEST = 88.7228f;
  const float inside = at_most(at_least(x, LOWEST), HIGHEST);
  const float n = std::floor(inside * 1.44269504f + 0.5f);
  const float r = (inside - n * 0.693359375f) + n * 2.12194440e-4f;
  float sum = 1.0f / 5040;
  sum = sum * r + 1.0f / 720;
  sum = sum * r + 1.0f / 120;
  sum = sum * r + 1.0f / 24;
  sum = sum * r + 1.0f / 6;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  const int32_t bits = std::bit_cast<int32_t>(sum) + static_cast<int32_t>(n) * (1 << 23);
  const float value = x > HIGHEST ? INFINITY : std::bit_cast<float>(bits);
  return x != x ? x : (x < LOWEST ? 0.0f : value);
}

// Near zero, where 1 - 2 / (e^2x + 1) has few digits left, by a polynomial.
inline float tanh_of(float x) {
  const float size = std::abs(x);
  const float far = 1.0f - 2.0f / (exp_of(2.0f * at_most(size, 10.0f)) + 1.0f);
  const float s = x * x;
  float sum = -5.70498872745e-3f;
  sum = sum * s + 2.06390887954e-2f;
  sum = sum * s - 5.37397155531e-2f;
  sum = sum * s + 1.33314422036e-1f;
  sum = sum * s - 3.33332819422e-1f;
  const float near = x + x * s * sum;
  const float value = std::copysign(far, x);
  return size < 0.625f ? near : (x != x ? x : value);
}

inline float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }

inline float softplus_of(float x, float beta, float limit) {
  return x * beta > limit ? x : std::log1p(std::exp(x * beta)) / beta;
}

inline float softplus_slope(float x, float beta, float limit) {
  return x * beta > limit ? 1.0f : sigmoid_of(x * beta);
}

// From where to where thread `me` of `threads` goes through n elements.
inline long share(long n, int me, int threads) {
  return me == threads ? n : n * me / threads / 16 * 16;
}

// So many bytes, where vectors like to lie.
class Memory {
 public:
  explicit Memory(std::size_t bytes)
      : begin_(static_cast<char*>(::operator new(bytes, std::align_val_t(64)))) {}
  Memory(const Memory&) = delete;
  ~Memory() { ::operator delete(begin_, std::align_val_t(64)); }

  char* begin() const { return begin_; }

 private:
  char* begin_;
};

// What a step works with besides what it is given: memory of each thread and of all, and the threads.
//
// These go through a step together: the caller and helpers. A helper is needed again less than a
// millisecond later, and waking one that sleeps takes a good part of that: so it looks again and again
// for a while, and gives its core to whoever else wants it between two looks.
class Crew {
 public:
  using Body = void (*)(Crew& crew, int me, void* const* given);

  Crew(int threads, std::size_t thread_bytes, std::size_t shared_bytes)
      : threads_(threads), shared_(shared_bytes) {
    for (int me = 0; me < threads; ++me) own_.emplace_back(std::make_unique<Memory>(thread_bytes));
    for (int me = 1; me < threads; ++me) helpers_.emplace_back([this, me] { serve(me); });
  }

  ~Crew() {
    body_ = nullptr;
    begin();
    for (auto& helper : helpers_) helper.join();
  }

  char* memory_of(int me) const { return own_[me]->begin(); }
  char* shared() const { return shared_.begin(); }

  void run(Body body, void* const* given) {
    if (threads_ > 1) {
      body_ = body;
      given_ = given;
      begin();
    }
    body(*this, 0, given);  // it ends with a meeting
  }

  // Returns when all threads are here.
  void meet() {
    if (threads_ == 1) return;
    const unsigned before = meetings_.load(std::memory_order_acquire);
    if (here_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      here_.store(0, std::memory_order_relaxed);
      meetings_.fetch_add(1, std::memory_order_release);
      return;
    }
    for (int looks = 0; meetings_.load(std::memory_order_acquire) == before; ++looks) {
      if (looks < LOOKS) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  static constexpr int LOOKS = 200;
  static constexpr std::chrono::microseconds PATIENCE{500};  // about what comes between two steps

  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  void begin() {
    begun_.fetch_add(1);
    begun_.notify_all();
  }

  void serve(int me) {
    for (unsigned done = 0;; ++done) {
      const auto until = std::chrono::steady_clock::now() + PATIENCE;
      while (begun_.load() == done && std::chrono::steady_clock::now() < until) {
        std::this_thread::yield();
      }
      begun_.wait(done);
      if (body_ == nullptr) return;
      body_(*this, me, given_);
    }
  }

  const int threads_;
  Body body_ = nullptr;
  void* const* given_ = nullptr;
  std::atomic<unsigned> begun_{0}, meetings_{0};
  std::atomic<int> here_{0};
  const Memory shared_;
  std::vector<std::unique_ptr<Memory>> own_;
  std::vector<std::thread> helpers_;
};

}  // namespace repertory
